# Ramjet in an empty image: one static binary and nothing else. `make image` builds the binary first.
FROM scratch
ARG BINARY=build/ramjet
COPY ${BINARY} /ramjet
USER 65532:65532
# 8080 HTTP; 10254 health, metrics and the admin API
EXPOSE 8080 10254
STOPSIGNAL SIGTERM
ENTRYPOINT ["/ramjet"]
