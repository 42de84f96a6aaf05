//! Which request a reply belongs to: a queue of what was asked on one connection. Pure.
//!
//! A server answers in order, but for two things: pub/sub messages belong to no request, and a subscription is
//! confirmed once per channel, by pushes that may come between answers.

use std::collections::VecDeque;
use std::time::Duration;

use super::fault::Command;
use super::resp::parts;

/// What is to happen to a reply when it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Pass,
    Swallow,
    Reset,
    Delay(Duration),
}

#[derive(Debug)]
pub(super) enum Incoming {
    Reply(Then),
    Message(Command),
}

#[derive(Debug)]
enum Expected {
    Answer(Then),
    Confirmations(usize, Then),
    Injected(Vec<u8>),
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    queue: VecDeque<Expected>,
    is_subscriber: bool,
}

impl Pending {
    /// A command goes to the server.
    pub(super) fn expect(&mut self, command: &Command, then: Then) {
        let channels = command.args.len().saturating_sub(1).max(1);
        self.queue.push_back(match command.name().as_str() {
            "SUBSCRIBE" | "PSUBSCRIBE" | "SSUBSCRIBE" => {
                self.is_subscriber = true;
                Expected::Confirmations(channels, then)
            }
            "UNSUBSCRIBE" | "PUNSUBSCRIBE" | "SUNSUBSCRIBE" => {
                Expected::Confirmations(channels, then)
            }
            _ => Expected::Answer(then),
        });
    }

    /// A command does not go to the server, this is its answer instead.
    pub(super) fn inject(&mut self, answer: Vec<u8>) {
        self.queue.push_back(Expected::Injected(answer));
    }

    /// The injected answer whose turn it is.
    pub(super) fn next_injected(&mut self) -> Option<Vec<u8>> {
        match self.queue.pop_front()? {
            Expected::Injected(answer) => Some(answer),
            other => {
                self.queue.push_front(other);
                None
            }
        }
    }

    /// A frame comes from the server.
    pub(super) fn arrived(&mut self, frame: &[u8]) -> Incoming {
        if frame.first() == Some(&b'>') || (self.is_subscriber && frame.first() == Some(&b'*')) {
            let args = parts(frame);
            match args.first().map(Vec::as_slice) {
                Some(b"subscribe" | b"psubscribe" | b"ssubscribe") => return self.confirmed(),
                Some(b"unsubscribe" | b"punsubscribe" | b"sunsubscribe") => {
                    return self.confirmed();
                }
                Some(b"message" | b"pmessage" | b"smessage") => {
                    return Incoming::Message(Command {
                        args,
                        message: true,
                    });
                }
                // Other pushes (invalidations, say) are nobody's answer either.
                _ if frame.first() == Some(&b'>') => return Incoming::Reply(Then::Pass),
                _ => {}
            }
        }
        // A refused subscription is answered by an error, once.
        match self.queue.pop_front() {
            Some(Expected::Answer(then) | Expected::Confirmations(_, then)) => {
                Incoming::Reply(then)
            }
            Some(Expected::Injected(_)) | None => Incoming::Reply(Then::Pass),
        }
    }

    pub(super) fn is_subscriber(&self) -> bool {
        self.is_subscriber
    }

    fn confirmed(&mut self) -> Incoming {
        let expected = self.queue.iter_mut().enumerate().find_map(|(at, one)| {
            if let Expected::Confirmations(left, then) = one {
                return Some((at, left, then));
            }
            None
        });
        // An UNSUBSCRIBE of everything is confirmed more often than its arguments say.
        let Some((at, left, then)) = expected else {
            return Incoming::Reply(Then::Pass);
        };
        let now = std::mem::replace(then, Then::Pass);
        *left -= 1;
        if *left == 0 {
            self.queue.remove(at);
        }
        Incoming::Reply(now)
    }
}

#[cfg(test)]
mod tests {
    use super::{Command, Incoming, Pending, Then};

    fn command(words: &str) -> Command {
        let args = words.split(' ').map(|word| word.as_bytes().to_vec());
        Command {
            args: args.collect(),
            message: false,
        }
    }

    fn then_of(incoming: &Incoming) -> Option<Then> {
        match incoming {
            Incoming::Reply(then) => Some(*then),
            Incoming::Message(_) => None,
        }
    }

    #[test]
    fn replies_are_paired_in_order() {
        let mut pending = Pending::default();
        pending.expect(&command("GET a"), Then::Pass);
        pending.expect(&command("GET b"), Then::Reset);
        assert_eq!(then_of(&pending.arrived(b"$-1\r\n")), Some(Then::Pass));
        assert_eq!(then_of(&pending.arrived(b"$-1\r\n")), Some(Then::Reset));
    }

    #[test]
    fn messages_and_confirmations_do_not_shift_the_answers() {
        let mut pending = Pending::default();
        pending.expect(&command("PING"), Then::Swallow);
        pending.expect(&command("SUBSCRIBE a b"), Then::Reset);
        pending.expect(&command("PING"), Then::Pass);
        let message = pending.arrived(b">3\r\n+message\r\n+a\r\n+0\r\n");
        assert_eq!(then_of(&message), None);
        let confirmed = pending.arrived(b">3\r\n+subscribe\r\n+a\r\n:1\r\n");
        assert_eq!(then_of(&confirmed), Some(Then::Reset));
        assert_eq!(then_of(&pending.arrived(b"+PONG\r\n")), Some(Then::Swallow));
        let again = pending.arrived(b">3\r\n+subscribe\r\n+b\r\n:2\r\n");
        assert_eq!(then_of(&again), Some(Then::Pass));
        assert_eq!(then_of(&pending.arrived(b"+PONG\r\n")), Some(Then::Pass));
    }

    #[test]
    fn an_injected_answer_waits_for_its_turn() {
        let mut pending = Pending::default();
        pending.expect(&command("GET a"), Then::Pass);
        pending.inject(b"-NO\r\n".to_vec());
        assert_eq!(pending.next_injected(), None);
        pending.arrived(b"$-1\r\n");
        assert_eq!(pending.next_injected(), Some(b"-NO\r\n".to_vec()));
    }
}
