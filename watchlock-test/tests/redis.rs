//! The Redis as any client sees it, here redis-rs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use watchlock::Error;
use watchlock::redis::aio::MultiplexedConnection;
use watchlock::redis::{self, AsyncCommands, Commands, RedisResult};
use watchlock_test::{Fault, Redis};

const MS: Duration = Duration::from_millis(1);
const LIMIT: Duration = Duration::from_secs(20);

async fn connect(redis: &Redis) -> RedisResult<MultiplexedConnection> {
    let client = redis::Client::open(redis.url())?;
    client.get_multiplexed_async_connection().await
}

#[tokio::test]
async fn any_client_can_use_it() -> RedisResult<()> {
    let redis = Redis::start();
    let mut connection = connect(&redis).await?;
    let _: () = connection.set("name", "value").await?;
    assert_eq!(connection.get::<_, String>("name").await?, "value");
    assert_eq!(redis.keys(), ["name"]);
    assert!(!redis.is_clean());

    let mut unknown = redis::cmd("GEOADD");
    let refused = unknown.arg("x").query_async::<()>(&mut connection).await;
    assert!(refused.unwrap_err().to_string().contains("GEOADD"));
    Ok(())
}

#[test]
fn tasks_and_threads_can_share_it() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Redis>();
    is_shared::<watchlock_test::Stranger>();
}

#[test]
fn it_needs_no_runtime() -> RedisResult<()> {
    let redis = Redis::start();
    let mut connection = redis::Client::open(redis.url())?.get_connection()?;
    let _: () = connection.set("name", "value")?;
    assert_eq!(redis.keys(), ["name"]);
    Ok(())
}

#[test]
fn each_has_its_own_data_and_ends_with_its_value() {
    let begun = std::time::Instant::now();
    let all: Vec<Redis> = (0..20).map(|_| Redis::start()).collect();
    println!("20 started in {:?}", begun.elapsed());
    for redis in &all {
        let mut connection = redis::Client::open(redis.url())
            .unwrap()
            .get_connection()
            .unwrap();
        let _: () = connection.set(redis.port(), 1).unwrap();
        assert_eq!(redis.keys(), [redis.port().to_string()]);
    }
    let port = all[0].port();
    drop(all);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn it_ends_beside_an_open_connection_and_a_stranger() {
    let redis = Redis::start();
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
    let stranger = redis.held_by_stranger("import");
    drop(redis);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(rest, b"");
    drop(stranger);
}

#[test]
fn what_is_no_command_ends_the_connection() {
    let redis = Redis::start();
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
    stream.write_all(b"PING\r\n*1\r\n?2\r\n").unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    assert_eq!(
        replies,
        "+PONG\r\n-ERR Protocol error: expected '$', got '?'\r\n"
    );
}

#[tokio::test]
async fn a_client_can_end_others_and_itself() -> RedisResult<()> {
    let redis = Redis::start();
    let mut other = connect(&redis).await?;
    let mut connection = connect(&redis).await?;
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME");
    let killed: u64 = kill.clone().arg("yes").query_async(&mut connection).await?;
    assert_eq!(killed, 1);
    assert!(other.get::<_, Option<String>>("name").await.is_err());
    let killed: u64 = kill.arg("no").query_async(&mut connection).await?;
    assert_eq!(killed, 1);
    assert!(connection.get::<_, Option<String>>("name").await.is_err());
    Ok(())
}

#[tokio::test]
async fn what_arrives_in_pieces_is_answered() {
    let redis = Redis::start();
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
    for byte in b"*1\r\n$4\r\nPING\r\n" {
        stream.write_all(&[*byte]).unwrap();
        tokio::task::yield_now().await;
    }
    let mut pong = [0; 7];
    stream.read_exact(&mut pong).unwrap();
    assert_eq!(&pong, b"+PONG\r\n");
}

#[tokio::test]
async fn a_frozen_one_answers_when_it_thaws() -> RedisResult<()> {
    let redis = Redis::start();
    let mut connection = connect(&redis).await?;
    redis.freeze();
    let mut waiting = Box::pin(connection.set::<_, _, ()>("name", "value"));
    assert!(timeout(100 * MS, &mut waiting).await.is_err());
    assert!(redis.keys().is_empty());
    redis.thaw();
    timeout(LIMIT, waiting).await.expect("an answer")?;
    assert_eq!(redis.keys(), ["name"]);
    Ok(())
}

#[tokio::test]
async fn a_stopped_one_serves_nobody_until_it_is_restarted() -> RedisResult<()> {
    let redis = Redis::start();
    let mut connection = connect(&redis).await?;
    let _: () = connection.set("name", "value").await?;
    redis.stop();
    assert!(connection.get::<_, String>("name").await.is_err());
    assert!(connect(&redis).await.is_err());

    redis.restart_with_data();
    let mut connection = connect(&redis).await?;
    assert_eq!(connection.get::<_, String>("name").await?, "value");
    redis.restart();
    assert!(connection.get::<_, String>("name").await.is_err());
    assert!(redis.is_clean());
    Ok(())
}

#[tokio::test]
async fn a_silent_connection_runs_and_answers_nothing() -> RedisResult<()> {
    let redis = Redis::start();
    let mut connection = connect(&redis).await?;
    redis.next_command(Fault::Silent);
    let setting = connection.set::<_, _, ()>("name", "value");
    assert!(timeout(100 * MS, setting).await.is_err());
    assert_eq!(redis.keys(), ["name"]);
    let asking = connection.get::<_, String>("name");
    assert!(timeout(100 * MS, asking).await.is_err());
    let other: String = connect(&redis).await?.get("name").await?;
    assert_eq!(other, "value");
    Ok(())
}

#[tokio::test]
async fn a_cut_connection_ran_its_command() -> RedisResult<()> {
    let redis = Redis::start();
    let mut connection = connect(&redis).await?;
    redis.next_command(Fault::Cut);
    let cut = connection.set::<_, _, ()>("name", "value").await;
    assert!(cut.unwrap_err().is_connection_dropped());
    assert_eq!(redis.keys(), ["name"]);
    Ok(())
}

#[tokio::test]
async fn a_refused_command_does_not_run_and_the_next_one_does() -> RedisResult<()> {
    let redis = Redis::start();
    let mut connection = connect(&redis).await?;
    redis.next_command(Fault::Refused("OOM no\r\nroom".to_owned()));
    let refused = connection.set::<_, _, ()>("name", "value").await;
    assert_eq!(refused.unwrap_err().code(), Some("OOM"));
    assert!(redis.keys().is_empty());
    connection.set("name", "value").await
}

#[tokio::test]
async fn a_delayed_reply_comes() -> RedisResult<()> {
    let redis = Redis::start();
    redis.stop_clock();
    let mut connection = connect(&redis).await?;
    redis.next_command(Fault::Delayed(100 * MS));
    let mut late = Box::pin(connection.set::<_, _, ()>("name", "value"));
    tokio::select! {
        biased;
        _ = &mut late => panic!("it was not delayed"),
        () = sleep(10 * MS) => {}
    }
    assert_eq!(redis.keys(), ["name"]);
    late.await
}

#[tokio::test]
async fn keys_live_by_its_clock() -> RedisResult<()> {
    let redis = Redis::start();
    redis.stop_clock();
    let mut connection = connect(&redis).await?;
    let _: () = connection.set_ex("name", "value", 60).await?;
    redis.advance(Duration::from_secs(59));
    assert!(!redis.is_clean());
    redis.advance(Duration::from_secs(1) + MS);
    assert!(redis.is_clean());
    redis.start_clock();
    Ok(())
}

#[tokio::test]
async fn a_strangers_release_wakes_a_waiter() -> Result<(), Error> {
    let redis = Redis::start();
    redis.stop_clock();
    let client = redis.client().await?;
    let stranger = redis.held_by_stranger("import");
    let lock = client.get_lock("import");
    let waiting = tokio::spawn(async move { lock.lock().await });
    while redis.command_count("subscribe") == 0 {
        sleep(MS).await;
    }
    drop(stranger);
    let guard = timeout(LIMIT, waiting).await.expect("it has it").unwrap()?;
    guard.unlock().await
}

#[tokio::test]
#[should_panic(expected = "a stranger cannot hold \"import\"")]
async fn a_stranger_cannot_hold_what_is_held() {
    let redis = Redis::start();
    let _first = redis.held_by_stranger("import");
    let _second = redis.held_by_stranger("import");
}
