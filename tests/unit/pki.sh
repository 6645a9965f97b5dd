#!/bin/bash
# Writes pki.h: the keys and certificates of the unit tests, valid for a century. Run it only to change them.
set -e
out=$(cd "$(dirname "$0")" && pwd)/pki.h
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
sans=DNS:kubernetes,DNS:kubernetes.default.svc,DNS:*.wild.example,IP:10.96.0.1,IP:127.0.0.1,IP:fd77::1

key() { # name kind
    case $2 in
    rsa*) openssl genrsa -traditional -out "$1.key" "${2#rsa}" ;;
    ed25519) openssl genpkey -algorithm ed25519 -out "$1.key" ;;
    *) openssl ecparam -name "$2" -genkey -noout -out "$1.key" ;;
    esac
}
ca() { # name kind
    key "$1" "$2"
    openssl req -x509 -new -key "$1.key" -days 36500 -subj "/CN=$1" -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign -out "$1.crt"
}
cert() { # name kind ca usage [san [days]]
    key "$1" "$2"
    openssl req -new -key "$1.key" -subj "/O=test/CN=$1" -out "$1.csr"
    { [ -z "$4" ] || echo "extendedKeyUsage=$4"; [ -z "$5" ] || echo "subjectAltName=$5"; echo basicConstraints=CA:FALSE; } > "$1.ext"
    openssl x509 -req -in "$1.csr" -CA "$3.crt" -CAkey "$3.key" -set_serial "0x$(openssl rand -hex 8)" -days "${6:-36500}" -extfile "$1.ext" -out "$1.crt"
}
ca ca_ec prime256v1
ca ca_rsa rsa2048
ca ca_other prime256v1
cert server_ec prime256v1 ca_ec serverAuth "$sans"
cert server_rsa rsa2048 ca_rsa serverAuth,clientAuth "$sans"
cert server_any prime256v1 ca_ec "" DNS:any.example
cert server_client prime256v1 ca_ec clientAuth "$sans"
cert server_cn prime256v1 ca_ec serverAuth ""
cert client_rsa rsa2048 ca_ec clientAuth
cert client_p256 prime256v1 ca_ec clientAuth
cert client_p384 secp384r1 ca_rsa clientAuth
openssl req -x509 -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout self.key -days 36500 -subj /CN=self -addext basicConstraints=critical,CA:FALSE \
    -addext subjectAltName=DNS:self.example -out self.crt
openssl req -x509 -new -newkey ed25519 -nodes -keyout ed25519.key -days 36500 -subj /CN=ed25519 -out ed25519.crt
openssl pkcs8 -topk8 -nocrypt -in client_rsa.key -out client_rsa_pkcs8.key
openssl pkcs8 -topk8 -nocrypt -in client_p256.key -out client_p256_pkcs8.key
openssl pkcs8 -topk8 -in client_p256.key -passout pass:test -out encrypted_pkcs8.key
openssl rsa -traditional -aes128 -passout pass:test -in client_rsa.key -out encrypted_pkcs1.key
openssl ecparam -name secp256k1 -genkey -noout -out secp256k1.key
{ openssl ecparam -name prime256v1; cat client_p256.key; } > client_p256_params.key
{
    printf '#ifndef PKI_H\n#define PKI_H\n\n'
    echo '/* Made by pki.sh: keys and certificates that exist for these tests only. */'
    for f in ca_*.crt server_*.crt server_*.key client_*.crt client_*.key self.crt self.key ed25519.* encrypted_* secp256k1.key; do
        name=${f%.*}
        echo "static const char pki_${name}_${f##*.}[] ="
        sed 's/.*/    "&\\n"/' "$f" | sed '$s/$/;/'
    done
    echo '#endif'
} > "$out"
