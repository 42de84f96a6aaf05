//! What docs/acl.md says of other deployments: its rights are enough, and without each one that happens which the page
//! says.

use std::time::Duration;

use watchlock::{Client, ClientBuilder, Error, Lease};
use watchlock_support::eventually;
use watchlock_support::sentinel::{SERVICE, SentinelDeployment};
use watchlock_support::server::RedisServer;

use crate::acl::documented_rights;

const LONG: Duration = Duration::from_secs(30);

/// The rights of the sentinels' user.
fn of_sentinels() -> Vec<&'static str> {
    let document = include_str!("../../docs/acl.md");
    let mut lines = document.lines();
    let line = lines.find(|line| line.contains("get-master-addr-by-name"));
    let line = line.expect("a line for the sentinels' user");
    let rights = line.strip_prefix("ACL SETUSER app on >password ");
    rights.expect("the user's line").split(' ').collect()
}

/// A client whose user has these rights at the sentinels.
async fn client(
    deployment: &SentinelDeployment,
    user: &str,
    rights: &[&str],
) -> Result<Client, Error> {
    let set = ["ACL", "SETUSER", user, "reset", "on", ">secret"];
    let mut urls = Vec::new();
    for sentinel in deployment.sentinels() {
        sentinel.cmd(&[&set, rights].concat()).await;
        urls.push(format!(
            "redis://{user}:secret@127.0.0.1:{}/",
            sentinel.port()
        ));
    }
    ClientBuilder::sentinel(urls, SERVICE).connect().await
}

#[tokio::test]
async fn the_rights_at_sentinels_are_enough_and_a_missing_one_does_what_the_page_says() {
    let deployment = SentinelDeployment::start().await;
    let rights = of_sentinels();
    let mut clients = vec![client(&deployment, "enough", &rights).await.unwrap()];
    let mut needed = 0;
    for (number, missing) in rights
        .iter()
        .enumerate()
        .filter(|(_, right)| right.contains('+'))
    {
        let fewer: Vec<_> = rights
            .iter()
            .copied()
            .filter(|right| right != missing)
            .collect();
        match client(&deployment, &format!("without-{number}"), &fewer).await {
            Ok(client) => clients.push(client),
            Err(error) => {
                assert!(
                    matches!(error, Error::Denied { .. }),
                    "{missing}: {error:?}"
                );
                needed += 1;
            }
        }
    }
    // The only right that is needed is to ask where the master is.
    assert_eq!((needed, clients.len()), (1, 4));
    let old = &deployment.servers()[0];
    drop(
        deployment.sentinels()[0]
            .cmd(&["SENTINEL", "FAILOVER", SERVICE])
            .await,
    );
    let new = deployment.master_after(old, deployment.sentinels()).await;
    for (number, client) in clients.iter().enumerate() {
        let lock = client.get_lock(&format!("x{number}"));
        eventually("it is at the new master", LONG, async || {
            let Ok(Some(guard)) = lock.try_lock(LONG, Lease::Watchdog).await else {
                return false;
            };
            let there = new.exists(lock.name()).await;
            let _ = guard.unlock().await;
            there
        })
        .await;
    }
}

#[tokio::test]
async fn acknowledgements_need_wait() {
    let server = RedisServer::start();
    let replica = RedisServer::options().replica_of(&server).start();
    replica.synced().await;
    let mut rights = documented_rights();
    for (user, enough) in [("without", false), ("with", true)] {
        if enough {
            rights.push("+wait");
        }
        let set = ["ACL", "SETUSER", user, "reset", "on", ">secret"];
        server.cmd(&[&set, rights.as_slice()].concat()).await;
        let url = format!("redis://{user}:secret@127.0.0.1:{}/", server.port());
        let builder = Client::builder(&url).key_prefix("app:");
        let connected = builder
            .acknowledged_by(1, Duration::from_millis(200))
            .connect()
            .await;
        match connected {
            Ok(client) => {
                assert!(enough);
                let lock = client.get_lock("x");
                let guard = lock.try_lock(LONG, Lease::Watchdog).await.unwrap();
                guard.expect("granted").unlock().await.unwrap();
            }
            Err(error) => assert!(
                !enough && matches!(error, Error::Denied { .. }),
                "{error:?}"
            ),
        }
    }
}
