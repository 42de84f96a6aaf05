//! Who holds a lock of a cluster and who waits: each question goes to the node that knows.

use watchlock::{Client, Publish};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;

use crate::common::{LONG, soon};

#[tokio::test]
async fn holders_labels_and_waiters_are_found_at_their_nodes() {
    let cluster = RedisCluster::masters().await;
    for publish in [Publish::Sharded, Publish::Classic] {
        let connect = async || {
            let builder = Client::builder(&cluster.url()).publish(publish);
            builder.label("billing@host-7").connect().await.unwrap()
        };
        let (client, other) = (connect().await, connect().await);
        for name in ["a", "b", "c", "d", "e"] {
            let lock = client.get_lock(name);
            let guard = lock.lock().await.unwrap();
            eventually("the label is shown", LONG, async || {
                let holders = lock.holders().await.unwrap();
                let [holder] = &holders[..] else { return false };
                assert_eq!(holder.client, Some(client.id()));
                holder.label.is_some()
            })
            .await;
            let waiting = tokio::spawn({
                let lock = other.get_lock(name);
                async move { lock.lock().await }
            });
            eventually("it listens", LONG, async || {
                lock.waiters().await.unwrap() == 1
            })
            .await;
            guard.unlock().await.unwrap();
            soon(waiting)
                .await
                .unwrap()
                .unwrap()
                .unlock()
                .await
                .unwrap();

            let fair = client.get_fair_lock(format!("fair {name}"));
            let guard = fair.lock().await.unwrap();
            assert_eq!(fair.holders().await.unwrap().len(), 1);
            assert_eq!(fair.waiters().await.unwrap(), 0);
            guard.unlock().await.unwrap();
        }
        soon(client.shutdown(LONG)).await;
        soon(other.shutdown(LONG)).await;
        assert!(cluster.keys().await.is_empty());
    }
}
