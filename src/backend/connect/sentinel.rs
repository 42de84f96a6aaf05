//! Asks the sentinels which server is the master.
//!
//! 1. All sentinels are asked at the same time, each within the limit of one attempt to connect.
//! 2. The address that most of them name wins; in a tie the one with the higher configuration epoch. The first answer is
//!    not enough: a sentinel that was cut off still names the old master.
//! 3. It does not wait for answers that cannot change the result, so a dead or frozen sentinel costs no time.
//! 4. A master of an earlier epoch than the last one counts only if more than half of all sentinels name it. Otherwise a
//!    few that were cut off would lead the client back to the old master, and it would lose what it holds at the new one.
//!    Answers to a question that was asked before a later epoch was known are outdated, however many they are.
//! 5. A service is unknown for good only if most of all sentinels say so and none names a master: one that has just started
//!    learns of the service later.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use redis::aio::PubSub;

use super::address::{Address, Endpoint};
use super::hello::field;
use crate::backend::failure::{Class, Failure};
use crate::backend::timers::Timers;
use crate::error::ConfigError;
use crate::secrets::Provider;

/// The channel on which sentinels announce a new master.
const SWITCHES: &str = "+switch-master";

pub(crate) struct Sentinels {
    addresses: Vec<Address>,
    service: Box<str>,
    secrets: Option<Provider>,
    /// It was logged that the provider of credentials panicked.
    panicked: AtomicBool,
    /// The configuration epoch of the master that was named last; 0 if none was said.
    epoch: AtomicU64,
}

/// The master that a sentinel names, with its configuration epoch; none if it watches no master of that name.
type SentinelAnswer = Option<(Endpoint, u64)>;

impl Sentinels {
    pub(super) fn from_urls(
        urls: &[String],
        service: &str,
        secrets: Option<Provider>,
    ) -> Result<Self, ConfigError> {
        let addresses = urls.iter().map(|url| Address::from_url(url));
        let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        let is_allowed = !addresses.is_empty();
        ConfigError::check(is_allowed, "sentinel", "no address", "at least one")?;
        Ok(Self {
            addresses,
            service: service.into(),
            secrets,
            panicked: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Asks all sentinels, each within `limit`.
    pub(super) async fn master(
        &self,
        timers: &Timers,
        limit: Duration,
    ) -> Result<Endpoint, Failure> {
        // Relaxed, also below: the number stands for itself.
        let before = self.epoch.load(Ordering::Relaxed);
        let asked = self.addresses.iter().map(|a| self.ask(a, timers, limit));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut votes = SentinelVotes::of(self.addresses.len());
        while let Some(said) = asked.next().await {
            votes.count(said);
            if let Some(endpoint) = votes.decided() {
                return self.unless_older(&votes, endpoint, before);
            }
        }
        let endpoint = votes.outcome(&self.service)?;
        self.unless_older(&votes, endpoint, before)
    }

    /// The master that won, unless rule 4 says that it was the master before. `before`: the epoch that was known when they
    /// were asked.
    fn unless_older(
        &self,
        votes: &SentinelVotes,
        winner: Endpoint,
        before: u64,
    ) -> Result<Endpoint, Failure> {
        let (count, epoch, _) = votes.named[&winner];
        let latest = self.epoch.load(Ordering::Relaxed);
        let is_older = epoch > 0 && epoch < latest;
        if is_older && latest != before {
            let text = "the sentinels named a later master meanwhile";
            return Err(Failure::of(Class::Unreached, text));
        }
        if is_older && count * 2 <= votes.all {
            let text = "the sentinels that answer name an earlier master, and are no majority";
            return Err(Failure::of(Class::Unreached, text));
        }
        let known = &self.epoch;
        let is_next = |now| (epoch > 0 && (now == latest || now < epoch)).then_some(epoch);
        // A later epoch that another question has stored stays.
        let _ = known.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_next);
        Ok(winner)
    }

    /// The same sentinel with the credentials of now.
    fn identified(&self, sentinel: &Address) -> Result<Address, Failure> {
        sentinel.identified(self.secrets.as_ref(), &self.panicked)
    }

    async fn ask(
        &self,
        sentinel: &Address,
        timers: &Timers,
        limit: Duration,
    ) -> Result<SentinelAnswer, Failure> {
        let sentinel = self.identified(sentinel)?;
        let asking = async {
            let mut connection = sentinel.multiplexed().await?;
            let mut question = redis::pipe();
            question.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME");
            question.arg(&*self.service);
            question.cmd("SENTINEL").arg("MASTER").arg(&*self.service);
            let answers = connection.send_packed_commands(&question, 0, 2).await;
            answers.map_err(Failure::connecting)
        };
        let answers = timers.within(limit, asking).await;
        let answers = answers.ok_or_else(|| {
            let text = format!("no answer of a sentinel within connect_timeout ({limit:?})");
            Failure::of(Class::Unreached, text)
        })?;
        answer(answers?)
    }

    /// Subscribes to announcements of a new master at the sentinel `index`.
    pub(crate) async fn listen(&self, index: usize) -> Result<PubSub, Failure> {
        let sentinel = self.identified(&self.addresses[index])?;
        let mut subscribed = sentinel.pubsub().await?;
        let subscribing = subscribed.subscribe(SWITCHES).await;
        subscribing.map_err(Failure::connecting)?;
        Ok(subscribed)
    }

    /// The new master in a message, if it is about this service: `service old-host old-port host port`.
    pub(crate) fn switched_to(&self, message: &redis::Msg) -> Option<Endpoint> {
        let text = message.get_payload::<String>().ok()?;
        let mut words = text.split(' ');
        if words.next() != Some(&*self.service) {
            return None;
        }
        let host = words.nth(2)?;
        Some(Endpoint::new(host, words.next()?.parse().ok()?))
    }
}

/// Reads the replies to the two questions.
fn answer(replies: Vec<Value>) -> Result<SentinelAnswer, Failure> {
    let mut replies = replies.into_iter();
    let endpoint = replies.next().unwrap_or(Value::Nil).extract_error();
    let endpoint = endpoint.map_err(Failure::connecting)?;
    let Ok(endpoint) = redis::from_redis_value::<Option<(String, u16)>>(endpoint) else {
        return Err(Failure::strange_reply());
    };
    // It only matters in a tie, so a missing permission for it is no failure.
    let epoch = replies.next().and_then(|about| epoch(&about)).unwrap_or(0);
    Ok(endpoint.map(|(host, port)| (Endpoint::new(&host, port), epoch)))
}

fn epoch(about: &Value) -> Option<u64> {
    field(about, "config-epoch")?.parse().ok()
}

#[derive(Default)]
struct SentinelVotes {
    all: usize,
    silent: usize,
    /// How many sentinels named each master, the latest epoch among them, and how many masters were named before it. In a
    /// tie the one that was named last leads, so that attempts do not all lead to the same one.
    named: BTreeMap<Endpoint, (usize, u64, usize)>,
    unknown: usize,
    failure: Option<Failure>,
}

impl SentinelVotes {
    fn of(sentinels: usize) -> Self {
        Self {
            all: sentinels,
            silent: sentinels,
            ..Self::default()
        }
    }

    fn count(&mut self, said: Result<SentinelAnswer, Failure>) {
        self.silent -= 1;
        match said {
            Ok(None) => self.unknown += 1,
            Ok(Some((endpoint, epoch))) => {
                let before = self.named.len();
                let (votes, latest, _) = self.named.entry(endpoint).or_insert((0, 0, before));
                *votes += 1;
                *latest = epoch.max(*latest);
            }
            // A denial explains more than a missing answer.
            Err(failure) if failure.class == Class::Denied => self.failure = Some(failure),
            Err(failure) => drop(self.failure.get_or_insert(failure)),
        }
    }

    /// The address that leads so far.
    fn first(&self) -> Option<&Endpoint> {
        let named = self.named.iter().max_by_key(|(_, votes)| **votes);
        named.map(|(endpoint, _)| endpoint)
    }

    /// The address that wins whatever the other sentinels answer.
    fn decided(&self) -> Option<Endpoint> {
        let first = self.first()?;
        let others = self.named.iter().filter(|(named, _)| *named != first);
        let most = others.map(|(_, (votes, ..))| *votes).max().unwrap_or(0);
        let (votes, ..) = self.named[first];
        (votes > most + self.silent).then(|| first.clone())
    }

    /// The address that wins when no more answers will come.
    fn outcome(&self, service: &str) -> Result<Endpoint, Failure> {
        if let Some(first) = self.first() {
            return Ok(first.clone());
        }
        match &self.failure {
            // Rule 5: most must say so.
            Some(failure) if self.unknown * 2 <= self.all => Err(failure.clone()),
            _ => Err(Failure::unknown_service(service)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::any_reply_tests::{any_value, cases};
    use proptest::prelude::*;

    #[expect(clippy::unnecessary_wraps, reason = "an answer may name no master")]
    fn master(port: u16, epoch: u64) -> SentinelAnswer {
        Some((Endpoint::new("h", port), epoch))
    }

    /// None stands for no answer.
    fn votes(all: usize, said: Vec<Option<SentinelAnswer>>) -> SentinelVotes {
        let mut votes = SentinelVotes::of(all);
        for said in said {
            votes.count(said.ok_or_else(Failure::no_connection));
        }
        votes
    }

    fn port(endpoint: Option<Endpoint>) -> Option<u16> {
        endpoint.map(|endpoint| endpoint.port)
    }

    #[test]
    fn most_votes_win_and_not_the_first() {
        let said = vec![Some(master(1, 0)), Some(master(2, 1)), Some(master(2, 1))];
        assert_eq!(port(votes(3, said).decided()), Some(2));
        let said = vec![Some(master(1, 0)), Some(master(2, 1))];
        assert_eq!(votes(3, said).decided(), None, "the third decides");
    }

    #[test]
    fn what_cannot_change_it_is_not_waited_for() {
        let said = vec![Some(master(1, 0)), Some(master(1, 0))];
        assert_eq!(port(votes(3, said).decided()), Some(1));
        assert_eq!(votes(3, vec![Some(master(1, 0))]).decided(), None);
        let said = vec![None, None, Some(master(1, 0))];
        assert_eq!(port(votes(3, said).decided()), Some(1));
    }

    #[test]
    fn in_a_tie_the_later_epoch_wins() {
        let said = vec![Some(master(1, 4)), Some(master(2, 5)), None];
        let votes = votes(3, said);
        assert_eq!(votes.decided(), None);
        assert_eq!(port(votes.outcome("x").ok()), Some(2));
    }

    /// Questions are asked side by side, by each lane, and the answers to an old one may be read last.
    #[test]
    fn answers_from_before_a_later_master_was_named_do_not_count() {
        let urls = ["redis://127.0.0.1:1/".to_owned()];
        let sentinels = Sentinels::from_urls(&urls, "", None).unwrap();
        let named = |said: Vec<_>, before| {
            let votes = votes(3, said);
            let winner = votes.outcome("x").unwrap();
            port(sentinels.unless_older(&votes, winner, before).ok())
        };
        let most = |port, epoch| vec![Some(master(port, epoch)), Some(master(port, epoch)), None];
        let one = |port, epoch| vec![Some(master(port, epoch)), None, None];
        assert_eq!(named(most(1, 5), 0), Some(1));
        assert_eq!(named(most(2, 6), 5), Some(2));
        assert_eq!(named(most(1, 5), 5), None, "it was asked before");
        assert_eq!(named(one(1, 5), 6), None, "the later one is still known");
        // As after a reset of all sentinels.
        assert_eq!(named(most(1, 5), 6), Some(1));
        assert_eq!(named(one(1, 5), 5), Some(1));
    }

    #[test]
    fn in_a_tie_of_one_epoch_the_order_of_answers_decides() {
        for ports in [[1, 2], [2, 1]] {
            let said = ports.map(|port| Some(master(port, 0)));
            let votes = votes(2, said.into());
            assert_eq!(port(votes.outcome("x").ok()), Some(ports[1]));
        }
    }

    #[test]
    fn a_service_is_unknown_when_most_sentinels_do_not_know_it_and_none_does() {
        for (said, expected) in [
            (vec![Some(None)], Class::UnknownService),
            (vec![Some(None), Some(None), None], Class::UnknownService),
            (vec![Some(None), None, None], Class::Unreached),
            (vec![Some(None), None], Class::Unreached),
            (vec![None], Class::Unreached),
        ] {
            let failure = votes(said.len(), said).outcome("x").unwrap_err();
            assert_eq!(failure.class, expected);
        }
        let said = vec![Some(None), Some(master(1, 0))];
        assert_eq!(port(votes(2, said).outcome("x").ok()), Some(1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        /// Whatever is decided early is what all answers together say.
        #[test]
        fn what_is_decided_early_stands(said in prop::collection::vec((0u16..4, 0u64..3), 1..8)) {
            let all = said.len();
            let mut votes = SentinelVotes::of(all);
            let mut early = None;
            for (named, epoch) in said {
                votes.count(match named {
                    0 => Err(Failure::no_connection()),
                    port => Ok(master(port, epoch)),
                });
                early = early.or_else(|| votes.decided());
            }
            if let Some(early) = early {
                prop_assert_eq!(Some(early), votes.outcome("x").ok());
            }
        }
    }

    proptest! {
        #![proptest_config(cases(5_000))]
        #[test]
        fn every_reply_of_a_sentinel_is_read(
            replies in prop::collection::vec(any_value(), 0..3),
            message in any_value(),
        ) {
            let mut votes = SentinelVotes::of(1);
            votes.count(answer(replies));
            let outcome = votes.outcome("x");
            let urls = ["redis://127.0.0.1:1/".to_owned()];
            let sentinels = Sentinels::from_urls(&urls, "", None).unwrap();
            let switched = redis::Msg::from_value(&message);
            let switched = switched.and_then(|message| sentinels.switched_to(&message));
            // Whatever they name can be connected to, or fails.
            for endpoint in outcome.ok().into_iter().chain(switched) {
                let address = Address::from_url(&urls[0]).unwrap();
                drop(address.at(&endpoint.host, endpoint.port));
            }
        }
    }

    #[test]
    fn the_epoch_is_read_from_what_a_sentinel_says_of_the_master() {
        let flat = b"*4\r\n$4\r\nname\r\n$1\r\nx\r\n$12\r\nconfig-epoch\r\n$2\r\n17\r\n";
        assert_eq!(epoch(&redis::parse_redis_value(flat).unwrap()), Some(17));
        let map = b"%1\r\n$12\r\nconfig-epoch\r\n$2\r\n17\r\n";
        assert_eq!(epoch(&redis::parse_redis_value(map).unwrap()), Some(17));
        assert_eq!(epoch(&Value::Nil), None, "the right for it is missing");
    }

    /// A sentinel that must not be asked for the epoch counts as 0.
    #[test]
    fn an_address_has_the_latest_epoch_that_anybody_said_of_it() {
        let said = [(2, 0), (1, 4), (2, 5), (1, 4)];
        let said = said.map(|(port, epoch)| Some(master(port, epoch)));
        let votes = votes(4, said.into());
        assert_eq!(votes.decided(), None);
        assert_eq!(port(votes.outcome("x").ok()), Some(2));
    }

    #[test]
    fn a_denial_says_more_than_a_silence_whichever_comes_first() {
        let denied = || {
            let value = redis::parse_redis_value(b"-NOAUTH Authentication required.\r\n");
            Failure::connecting(value.unwrap().extract_error().unwrap_err())
        };
        for first in [true, false] {
            let mut votes = SentinelVotes::of(2);
            for denies in [first, !first] {
                votes.count(Err(if denies {
                    denied()
                } else {
                    Failure::no_connection()
                }));
            }
            assert_eq!(
                votes.outcome("x").unwrap_err().class,
                Class::Denied,
                "first: {first}"
            );
        }
    }
}
