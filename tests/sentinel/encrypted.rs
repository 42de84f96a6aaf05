//! Sentinels and servers that speak TLS and ask for certificates.

use std::sync::Arc;

use watchlock::{ClientBuilder, Error, Tls};
use watchlock_support::eventually;
use watchlock_support::sentinel::{SERVICE, SentinelDeployment};
use watchlock_support::tls::Certificates;

use crate::builder;
use crate::common::{LONG, ms, soon, try_once};

async fn deployment() -> (SentinelDeployment, Arc<Certificates>) {
    let certificates = Arc::new(Certificates::make());
    let options = SentinelDeployment::options().encrypted(&certificates);
    (options.start().await, certificates)
}

fn trusting(certificates: &Certificates) -> Tls {
    Tls::new().ca_pem(certificates.pem("ca.crt"))
}

#[tokio::test]
async fn a_fail_over_behind_tls() {
    let (deployment, certificates) = deployment().await;
    let pem = |file| certificates.pem(file);
    let tls = trusting(&certificates).client_pem(pem("server.crt"), pem("server.key"));
    let client = builder(&deployment).tls(tls).connect().await.unwrap();
    let [old, new] = deployment.servers() else {
        panic!("two servers")
    };
    for sentinel in deployment.sentinels() {
        eventually("the client listens", LONG, async || {
            let clients = sentinel.clients().await;
            clients.iter().any(|client| client["sub"] == "1")
        })
        .await;
    }
    let held = try_once(&client, "held").await.unwrap().unwrap();
    eventually("the replica has it", LONG, async || {
        new.exists("held").await
    })
    .await;
    old.kill();
    deployment.master_after(old, deployment.sentinels()).await;
    let guard = soon(client.get_lock("next").lock()).await.unwrap();
    assert!(new.exists("next").await);
    held.check().expect("the new master has it");
    held.unlock().await.unwrap();
    guard.unlock().await.unwrap();
}

/// Neither sentinels nor servers accept a client without a certificate.
#[tokio::test]
async fn who_shows_none_is_nobody() {
    let (deployment, certificates) = deployment().await;
    let connecting = ClientBuilder::sentinel(deployment.urls(), SERVICE)
        .server_url(&deployment.server_url())
        .tls(trusting(&certificates))
        .connect_timeout(ms(500));
    let refused = soon(connecting.connect()).await;
    assert!(
        matches!(refused, Err(Error::Unavailable { .. })),
        "{refused:?}"
    );
}
