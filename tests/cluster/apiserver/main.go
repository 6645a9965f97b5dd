// Command apiserver is kube-apiserver with an embedded etcd in one process, for
// the cluster tests. It keeps everything under --data-dir, so it can be killed
// at any moment (also with SIGKILL) and started again on the same folder.
//
// Its own flags are below; whatever follows "--" goes to kube-apiserver as it is.
package main

import (
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

var (
	dataDir    = flag.String("data-dir", "", "folder of etcd's data and of what kube-apiserver generates (required)")
	bind       = flag.String("bind-address", "127.0.0.1", "address of the API listener")
	port       = flag.Int("secure-port", 6443, "port of the API listener")
	etcdPort   = flag.Int("etcd-port", 2379, "loopback port of etcd's clients")
	peerPort   = flag.Int("etcd-peer-port", 2380, "loopback port of etcd's peers")
	tlsCert    = flag.String("tls-cert-file", "", "serving certificate, PEM")
	tlsKey     = flag.String("tls-private-key-file", "", "key of the serving certificate, PEM")
	clientCA   = flag.String("client-ca-file", "", "CA that signs client certificates, PEM")
	tokens     = flag.String("token-auth-file", "", "static tokens: token,user,uid,\"group\"")
	saPublic   = flag.String("service-account-key-file", "", "RSA public key, PEM (required)")
	saPrivate  = flag.String("service-account-signing-key-file", "", "RSA private key, PEM (required)")
	compaction = flag.Duration("compaction-interval", 5*time.Minute, "etcd history that is kept")
)

// startEtcd runs the store on loopback and returns when it takes requests.
func startEtcd() (*embed.Etcd, error) {
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(*dataDir, "etcd")
	cfg.LogLevel = "error"
	cfg.UnsafeNoFsync = true
	client := url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", *etcdPort)}
	peer := url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", *peerPort)}
	cfg.ListenClientUrls = []url.URL{client}
	cfg.AdvertiseClientUrls = []url.URL{client}
	cfg.ListenPeerUrls = []url.URL{peer}
	cfg.AdvertisePeerUrls = []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.Server.ReadyNotify():
		return e, nil
	case err := <-e.Err():
		return nil, err
	case <-time.After(60 * time.Second):
		return nil, fmt.Errorf("etcd was not ready after 60 s")
	}
}

// apiArgs builds the command line of kube-apiserver.
func apiArgs() []string {
	args := []string{
		"kube-apiserver",
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", *etcdPort),
		fmt.Sprintf("--secure-port=%d", *port),
		"--bind-address=" + *bind,
		"--advertise-address=" + *bind,
		"--cert-dir=" + filepath.Join(*dataDir, "certs"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + *saPublic,
		"--service-account-signing-key-file=" + *saPrivate,
		"--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112",
		"--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount",
		"--endpoint-reconciler-type=none",
		"--etcd-compaction-interval=" + compaction.String(),
		"--profiling=false",
	}
	add := func(name, value string) {
		if value != "" {
			args = append(args, name+"="+value)
		}
	}
	add("--tls-cert-file", *tlsCert)
	add("--tls-private-key-file", *tlsKey)
	add("--client-ca-file", *clientCA)
	add("--token-auth-file", *tokens)
	return append(args, flag.Args()...)
}

func main() {
	flag.Parse()
	if *dataDir == "" || *saPublic == "" || *saPrivate == "" {
		fmt.Fprintln(os.Stderr, "apiserver: --data-dir, --service-account-key-file and --service-account-signing-key-file are required")
		os.Exit(2)
	}
	e, err := startEtcd()
	if err != nil {
		fmt.Fprintln(os.Stderr, "apiserver: etcd:", err)
		os.Exit(1)
	}
	os.Args = apiArgs()
	code := cli.Run(app.NewAPIServerCommand())
	e.Close()
	os.Exit(code)
}
