//! The keeper's job for a latch that callers of this client wait for.
//!
//! It asks at once when somebody comes, then subscribes, and asks again when that is confirmed: a count that was not heard
//! came before that question. From then on it asks at each message, when the key ends, and at the poll. A message alone
//! opens nothing, since anybody may publish. Nobody needs to be served in any order, so one question does for all.

use std::sync::Arc;

use super::listening::{ChannelNews, Listening};
use super::policy::WaitPolicy;
use crate::backend::{Failure, Pending};
use crate::engine::core::error_of;
use crate::engine::gate::LastAnswer;
use crate::engine::keeper::Keeper;
use crate::engine::latches::WaitedLatch;
use crate::names::Names;
use crate::script::Reply;
use crate::script::call::LATCH_LOOK;

/// Runs until nobody waits for the latch.
pub(in crate::engine::keeper) async fn watch_latch(keeper: Arc<Keeper>, names: Arc<Names>) {
    let Some(latch) = keeper.core.latches.of(&names) else {
        return;
    };
    let mut job = LatchJob {
        listening: Listening::new(&keeper, &names),
        policy: WaitPolicy::new(keeper.core.config.backoff, fastrand::u64(..)),
        known: None,
        latch: Arc::clone(&latch),
        keeper: Arc::clone(&keeper),
        names: Arc::clone(&names),
    };
    loop {
        tokio::select! {
            biased;
            () = latch.left() => if keeper.core.latches.forget(&names, &latch) {
                break;
            },
            () = job.ask_in_time() => {}
        }
    }
    job.listening.leave();
}

struct LatchJob {
    keeper: Arc<Keeper>,
    names: Arc<Names>,
    latch: Arc<WaitedLatch>,
    listening: Listening,
    policy: WaitPolicy,
    /// The last answer; none while nobody needs a question.
    known: Option<LastAnswer>,
}

impl LatchJob {
    /// Waits for a reason to ask, and asks. Dropped at any await, it goes on with the next call.
    async fn ask_in_time(&mut self) {
        match self.known.clone() {
            None => self.latch.wanted.notified().await,
            Some(known) => self.reason(&known).await,
        }
        self.policy.again();
        // If this is dropped before the answer, a question is due.
        self.known = Some(LastAnswer::Nothing);
        self.known = self.ask().await;
        if self.known.is_none() {
            self.listening.leave();
        }
    }

    async fn reason(&mut self, known: &LastAnswer) {
        let core = Arc::clone(&self.keeper.core);
        loop {
            let now = core.now();
            if self.policy.is_open() {
                self.listening.retry(now);
            }
            self.listening.start(&[self.names.channel()]);
            let listening = self.listening.is_live();
            let poll_at = self.policy.next_try(now, known, listening, true);
            tokio::select! {
                biased;
                () = self.latch.wanted.notified() => return,
                news = self.listening.news() => match news {
                    ChannelNews::Confirmed | ChannelNews::Messages(_) => return,
                    ChannelNews::Broken => {
                        // Subscribing again may fail, too, so the next question comes sooner than was planned.
                        let broken = LastAnswer::Failed(Failure::no_connection());
                        self.policy.again();
                        self.policy.next_try(now, &broken, false, true);
                    }
                    ChannelNews::Nothing => {}
                },
                () = core.backend.timers().sleep_until(poll_at) => return,
            }
        }
    }

    /// Asks Redis whether the latch is open, once for all who wait.
    async fn ask(&self) -> Option<LastAnswer> {
        let core = &self.keeper.core;
        let since = core.now();
        let question = self.latch.begin_question();
        let call = LATCH_LOOK.on(&self.names).arg("wait");
        let sent = Pending::start(&core.backend.keepers, call);
        let asking = sent.clone().within_of(since, core.config.command_timeout);
        let result = match asking.await {
            Ok(answer) => match answer.reply {
                Reply::Busy(left) => {
                    self.latch.is_closed();
                    return Some(LastAnswer::Busy(left.map(|left| since + left)));
                }
                Reply::Done(_) => Ok(()),
                refusal => Err(error_of(refusal)),
            },
            Err(failure) if failure.is_transient() => {
                core.notice_pause(core.now());
                self.latch.failed(sent.counts_from(since), &failure);
                return Some(LastAnswer::Failed(failure));
            }
            Err(failure) => Err(failure.into()),
        };
        self.latch.is_over(question, result);
        None
    }
}
