//! What happens before, during and after a server's trouble.

use watchlock::{ClientBuilder, Error, Lease, LockGuard};
use watchlock_support::eventually;

use crate::common::{LONG, ms, soon};
use crate::scene::{MINUTE, Scene};

/// Gives up on an answer soon, and on the server late.
pub(crate) fn patient(builder: ClientBuilder) -> ClientBuilder {
    builder.command_timeout(ms(800)).unavailable_after(MINUTE)
}

/// Before the trouble.
pub(crate) struct Story {
    /// Held through it.
    kept: LockGuard,
    /// Given back in it.
    given_back: LockGuard,
    dropped: LockGuard,
}

impl Story {
    pub(crate) async fn begin(scene: &Scene) -> Self {
        let kept = scene.lock("kept").lock().await.unwrap();
        let given_back = scene
            .lock("given-back")
            .lock_with_lease(MINUTE)
            .await
            .unwrap();
        let dropped = scene.lock("dropped").lock_with_lease(MINUTE).await.unwrap();
        Self {
            kept,
            given_back,
            dropped,
        }
    }

    /// During the trouble: `is_typed` accepts the error; what waits is returned.
    pub(crate) async fn suffer(self, scene: &Scene, is_typed: fn(&Error) -> bool) -> Waiting {
        let lock = scene.lock("new");
        let once = soon(lock.try_lock(ms(0), Lease::Watchdog)).await;
        let bounded = soon(lock.try_lock(ms(100), Lease::Fixed(MINUTE))).await;
        for refused in [once.unwrap_err(), bounded.unwrap_err()] {
            assert!(is_typed(&refused) && refused.is_transient(), "{refused:?}");
        }
        let waiter = tokio::spawn(async move { lock.lock().await });
        let refused = soon(self.given_back.unlock()).await.unwrap_err();
        assert!(is_typed(&refused), "{refused:?}");
        drop(self.dropped);
        assert!(self.kept.is_valid());
        Waiting {
            kept: self.kept,
            waiter,
        }
    }
}

/// After the trouble.
pub(crate) struct Waiting {
    kept: LockGuard,
    waiter: tokio::task::JoinHandle<Result<LockGuard, Error>>,
}

impl Waiting {
    /// The waiter gets in, what was given back is gone, what was kept is there.
    pub(crate) async fn recover(self, scene: &Scene) {
        let guard = soon(self.waiter).await.unwrap();
        let guard = guard.expect("it waited through it");
        guard.unlock().await.unwrap();
        eventually("what was given back is gone", LONG, async || {
            let keys = scene.keys().await;
            !keys.is_empty() && keys.iter().all(|key| key.contains("kept"))
        })
        .await;
        self.kept.check().unwrap();
        self.kept.verify().await.unwrap();
        self.kept.unlock().await.unwrap();
        scene.clean().await;
    }
}
