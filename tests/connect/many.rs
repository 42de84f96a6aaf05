//! Many clients, one after the other: threads, files and connections are back at the start.

use watchlock::Client;
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::alone;
use crate::common::{LONG, ms, poll_once, try_once};
use crate::works;

/// The number of entries in a folder of `/proc/self`.
fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder)
        .expect("the folder is there")
        .count()
}

fn keepers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the folder is there");
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with("watchlock-kee"))
        .count()
}

#[cfg(target_os = "linux")]
#[test]
fn clients_leave_no_thread_and_no_file() {
    alone::run("many::clients_that_come_and_go", &[]);
}

#[tokio::test]
#[ignore = "counts what the whole process has; run by clients_leave_no_thread_and_no_file"]
async fn clients_that_come_and_go() {
    let server = RedisServer::start();
    // The first one creates what a process has once.
    works(&Client::connect(&server.url()).await.unwrap()).await;
    calm(&server).await;
    let (threads, files) = (entries("/proc/self/task"), entries("/proc/self/fd"));
    for round in 0..60 {
        let client = Client::connect(&server.url()).await.unwrap();
        match round % 4 {
            0 => works(&client).await,
            1 => drop(try_once(&client, "x").await.unwrap()),
            2 => assert!(client.shutdown(ms(1_000)).await.is_clean()),
            _ => {}
        }
    }
    for round in 0..30 {
        let url = if round % 2 == 0 {
            "redis://127.0.0.1:1/"
        } else {
            "redis://:no@127.0.0.1:1/9"
        };
        assert!(Client::connect(url).await.is_err());
    }
    let url = server.url();
    for polls in 0..60 {
        let mut connecting = Box::pin(Client::connect(&url));
        for _ in 0..polls {
            if poll_once(&mut connecting).await.is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    calm(&server).await;
    eventually("all files are closed", LONG, async || {
        entries("/proc/self/fd") <= files
    })
    .await;
    eventually("all threads ended", LONG, async || {
        entries("/proc/self/task") <= threads
    })
    .await;
}

async fn calm(server: &RedisServer) {
    eventually("nothing is left", LONG, async || {
        keepers() == 0 && server.connections().await == 0 && server.keys().await.is_empty()
    })
    .await;
}
