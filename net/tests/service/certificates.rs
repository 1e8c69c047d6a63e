//! Certificates out of their time: those of clients are refused by the server, those of servers by the client.

use std::time::Duration;

use crate::harness::{
    ClientAuthority, PATIENCE, SERVER_NAME, TestServer, add, certificate_of_years, identity, node, place,
    within,
};
use wharf_net::access::{AccessSettings, Role};
use wharf_net::client::{Client, ClientConfig, ClientError};
use wharf_net::protocol::ALPN;

/// A time that is over, and one that does not begin soon.
const PAST: [i32; 2] = [2000, 2020];
const FUTURE: [i32; 2] = [3000, 4000];

#[tokio::test]
async fn a_client_whose_certificate_is_out_of_its_time_is_refused_and_others_are_served() {
    let authority = ClientAuthority::new();
    let access = AccessSettings {
        tenants: Vec::new(),
        identities: vec![identity("admin", &[Role::Admin], None)],
        by_certificate: true,
        ..AccessSettings::default()
    };
    let server = TestServer::start_secured(&access, &authority);
    let config =
        |certificate| ClientConfig { certificate: Some(certificate), ..server.client_config(Duration::ZERO) };
    for years in [PAST, FUTURE] {
        let certificate = authority.client_of_years("admin", years);
        let refused = within(Client::connect(config(certificate))).await.err().expect("out of its time");
        let ClientError::Connect { message, .. } = &refused else { panic!("{refused:?}") };
        let is_told = message.contains("of this client has expired, or is not valid yet: take a new one");
        assert!(is_told, "{message}");
    }
    let certificate = authority.client_of_years("admin", [PAST[0], FUTURE[0]]);
    let client = within(Client::connect(config(certificate))).await.expect("it is in its time");
    add(&client, vec![node("a", 1, 1, 0)]).await;
    place(&client, &crate::harness::ask(1, 1, 0)).await;
    within(client.close()).await;
    server.stop().await;
}

/// Connects to a server that shows a certificate of these years. Returns why that failed.
async fn connect_to_server_of_years(years: [i32; 2]) -> ClientError {
    let (chain, key) = certificate_of_years(years);
    let provider = rustls::crypto::ring::default_provider();
    let mut tls = rustls::ServerConfig::builder_with_provider(provider.into())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![chain.clone()], key)
        .expect("the key is usable");
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(tls).expect("TLS 1.3");
    let config = quinn::ServerConfig::with_crypto(std::sync::Arc::new(crypto));
    let endpoint = quinn::Endpoint::server(config, ([127, 0, 0, 1], 0).into()).expect("a free port");
    let config = ClientConfig {
        server: endpoint.local_addr().expect("it is bound"),
        server_name: SERVER_NAME.to_owned(),
        roots: vec![chain],
        certificate: None,
        name: "test".to_owned(),
        retry_for: PATIENCE,
    };
    let accepting = tokio::spawn(async move {
        let incoming = endpoint.accept().await.expect("somebody connects");
        assert!(incoming.await.is_err(), "the client goes on");
    });
    let error = within(Client::connect(config)).await.err().expect("out of its time");
    within(accepting).await.expect("it accepts");
    error
}

#[tokio::test]
async fn the_client_says_that_the_certificate_of_the_server_is_out_of_its_time() {
    for (years, cause) in [(PAST, "certificate expired"), (FUTURE, "certificate not valid yet")] {
        let error = connect_to_server_of_years(years).await;
        let ClientError::Connect { message, .. } = &error else { panic!("{error:?}") };
        let told = ["the certificate of the server", cause, "`wharf cert server`", "clock of this machine"];
        assert!(told.iter().all(|part| message.contains(part)), "{message}");
    }
}
