//! What has been answered by now.

use std::future::poll_fn;
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

/// Hears what `futures` have come to by now, behind a pause in which the connections of this runtime pass on what they
/// have read. It costs less than to leave it to another thread, which has to be woken for it.
pub(super) async fn hear_by_now<F: Future>(
    futures: &mut FuturesUnordered<F>,
    mut hear: impl FnMut(F::Output),
) {
    let mut passed_on = futures.is_empty();
    poll_fn(|context| {
        if !passed_on {
            passed_on = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        while let Poll::Ready(Some(output)) = futures.poll_next_unpin(context) {
            hear(output);
        }
        Poll::Ready(())
    })
    .await;
}
