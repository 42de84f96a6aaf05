//! The closure form: the lock lasts as long as the body, and the body ends with the lock.
//!
//! ```text
//! $ cargo run --example closure
//! ```

use std::time::Duration;

use watchlock::{Client, Error, Lease};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let client = Client::connect(&url).await?;
    let lock = client.get_lock("closure:invoices");

    // Waits, runs the body, gives the lock back, returns what the body returned. When the lock is lost the
    // body is dropped at its next await, and the error says so.
    let number = lock
        .run(async |guard| {
            println!("inside, valid for another {:.0?}", guard.valid_for());
            next_invoice().await
        })
        .await?;
    println!("the body returned {number}");

    // In a task of its own, as any future.
    let elsewhere = lock.clone();
    let task = tokio::spawn(async move {
        let job = elsewhere.run(async |guard| {
            let number = next_invoice().await;
            guard.check().map(|()| number) // still ours, right before it counts
        });
        job.await?
    });
    let number = task.await.expect("the task does not panic")?;
    println!("the task returned {number}");

    // For jobs that only one of many processes needs to do: a process that finds it busy does something else.
    let busy = lock.lock().await?;
    let skipped = lock
        .try_run(Duration::from_millis(50), Lease::Watchdog, async |_guard| {
            next_invoice().await
        })
        .await?;
    println!("while it is busy: {skipped:?}");
    busy.unlock().await?;

    // A lock that is taken away in the middle: the body does not go on, and `run` does not report that it did.
    let taken = lock
        .run(async |guard| {
            lock.force_unlock().await?;
            guard.lost().await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok::<_, Error>("went on without the lock")
        })
        .await;
    match taken {
        Err(error) if error.is_lost() => println!("taken away: {error}"),
        other => println!("not as it should be: {other:?}"),
    }

    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

async fn next_invoice() -> u32 {
    tokio::time::sleep(Duration::from_millis(10)).await;
    2026
}
