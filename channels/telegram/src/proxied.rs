//! The Bot API in TLS behind a name that only a proxy knows: polling, files and answers go through HTTP CONNECT and SOCKS5.

use std::{net::SocketAddr, sync::Arc};

use channel_api::{Channel, Level, PartId, Reply, SendKey, contract::FakeGateway};
use channel_socket::Network;
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    Config, Telegram,
    fake::{self, ADA, TOKEN, private},
    proxy::Proxy,
};

const NAME: &str = "api.telegram.test";

/// Speaks TLS under `NAME` in front of a plain server; its address and its certificate in PEM.
async fn in_tls(tasks: &mut JoinSet<()>, to: SocketAddr) -> (SocketAddr, String) {
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).expect("a key");
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a server");
    let (acceptor, listener) =
        (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await.expect("a port"));
    let addr = listener.local_addr().expect("bound");
    tasks.spawn(async move {
        let mut open = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            open.spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut plain = TcpStream::connect(to).await.expect("the fake listens");
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut plain).await;
            });
        }
    });
    (addr, made.cert.pem())
}

#[tokio::test]
async fn everything_goes_through_an_http_and_a_socks5_proxy_in_tls() {
    for scheme in ["http", "socks5h"] {
        let mut tasks = JoinSet::new();
        let telegram = fake::Telegram::start().await;
        let plain = telegram.api_url();
        let (addr, path) = plain.trim_start_matches("http://").split_once('/').expect("an address with a path");
        let (tls, pem) = in_tls(&mut tasks, addr.parse().expect("an address")).await;
        let proxy = if scheme == "http" { Proxy::http(tls).await } else { Proxy::socks5(tls).await };
        let folder = tempfile::tempdir().expect("a folder");
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, pem).expect("written");
        let network = Network::new(Some(&format!("{scheme}://{}", proxy.addr)), Some(&ca)).expect("a network");
        let config: Config =
            toml::from_str(&format!("token = '{TOKEN}'\napi_url = 'https://{NAME}/{path}'")).expect("a config");
        let channel = Telegram::new("main", &config, &network).expect("a good config");
        let gateway = FakeGateway::new();
        channel.open(&gateway.context());

        telegram.put_file("cat", b"\x89PNG\r\n\x1a\nthrough the proxy");
        let photo = json!([{ "file_id": "cat", "file_unique_id": "u", "width": 9, "height": 9, "file_size": 25 }]);
        telegram.message(&private(ADA), ADA, &json!({ "photo": photo, "caption": "hello" }));
        tokio::select! {
            ended = channel.run(gateway.context()) => panic!("run ended: {ended:?}"),
            () = gateway.intake.until_stored(1) => {}
        }
        let event = gateway.intake.events().remove(0);
        assert_eq!((event.text.as_str(), gateway.media.files().len()), ("hello", 1), "{event:?}");
        let part = channel.render(&Reply::message("through and back"), Level::Rich).remove(0);
        let key = SendKey {
            part: PartId::generate(),
            seq: 1,
            last: true,
            in_reply_to: None,
            created_at: 0,
            resend: false,
            replaces: None,
        };
        channel.send(&event.address, &part, &key).await.expect("sent");
        telegram.said(ADA, "through and back").await;

        let seen = proxy.seen();
        let target = if scheme == "http" { format!("CONNECT {NAME}:443") } else { format!("socks {NAME}:443") };
        assert!(!seen.is_empty() && seen.iter().all(|line| *line == target), "{seen:?}");
    }
}
