//! Pingora as a plain proxy: `pingora PORT UPSTREAM-PORT THREADS`, or `pingora version`. Upstream connections are kept; nothing is logged.
use async_trait::async_trait;
use pingora::prelude::*;
use pingora::server::configuration::ServerConf;
use std::net::SocketAddr;

struct Plain(SocketAddr);

#[async_trait]
impl ProxyHttp for Plain {
    type CTX = ();

    fn new_ctx(&self) -> Self::CTX {}

    async fn upstream_peer(&self, _session: &mut Session, _ctx: &mut ()) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.0, false, String::new())))
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.len() != 4 {
        println!("pingora 0.9.1");
        return;
    }
    let conf = ServerConf {
        threads: arguments[3].parse().expect("threads"),
        upstream_keepalive_pool_size: 1100,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let upstream: SocketAddr = format!("127.0.0.1:{}", arguments[2]).parse().expect("upstream port");
    let mut proxy = http_proxy_service(&server.configuration, Plain(upstream));
    proxy.add_tcp(&format!("127.0.0.1:{}", arguments[1]));
    server.add_service(proxy);
    server.run_forever();
}
