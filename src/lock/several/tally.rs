//! Counting the answers of the children to one question.

use crate::error::Error;

/// The answers so far.
#[derive(Debug)]
pub(super) struct Tally {
    needed: usize,
    /// How many have not answered yet.
    open: usize,
    yes: usize,
    lost: usize,
    asked: usize,
    first_lost: Option<Error>,
    first_error: Option<Error>,
}

impl Tally {
    /// `asked` children are asked, and `needed` must say yes.
    pub(super) fn new(needed: usize, asked: usize) -> Self {
        Self {
            needed,
            open: asked,
            yes: 0,
            lost: 0,
            asked,
            first_lost: None,
            first_error: None,
        }
    }

    /// Counts one answer. Returns the result as soon as it is certain: yes when `needed` said yes; lost when so many are
    /// lost that the others are fewer than `needed`; else, after all answers, the first other error.
    pub(super) fn count(&mut self, answer: Result<(), Error>) -> Option<Result<(), Error>> {
        self.open -= 1;
        match answer {
            Ok(()) => self.yes += 1,
            Err(error) if error.is_lost() => {
                self.lost += 1;
                self.first_lost.get_or_insert(error);
            }
            Err(error) => {
                self.first_error.get_or_insert(error);
            }
        }
        if self.yes >= self.needed {
            return Some(Ok(()));
        }
        if self.lost + self.needed > self.asked {
            return self.first_lost.take().map(Err);
        }
        if self.open > 0 {
            return None;
        }
        let error = self.first_error.take().or_else(|| self.first_lost.take());
        Some(Err(error.unwrap_or_else(Error::not_owner)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LostReason;
    use proptest::prelude::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum ChildSays {
        Yes,
        Lost,
        Denied,
    }

    impl ChildSays {
        fn answer(self) -> Result<(), Error> {
            match self {
                Self::Yes => Ok(()),
                Self::Lost => Err(Error::lost(LostReason::Missing)),
                Self::Denied => Err(Error::not_owner()),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        #[test]
        fn it_is_yes_exactly_when_enough_said_so_and_lost_when_too_many_are(
            needed in 1usize..=9,
            says in prop::collection::vec(prop_oneof![Just(ChildSays::Yes), Just(ChildSays::Lost), Just(ChildSays::Denied)], 9),
            more in 0usize..=8,
        ) {
            let says = &says[..(needed + more).min(9)];
            let mut tally = Tally::new(needed, says.len());
            let mut counted = says.iter().map(|said| tally.count(said.answer()));
            let result = counted.find_map(|answer| answer).expect("a result once all answers are counted");
            let number_of = |what| says.iter().filter(|said| **said == what).count();
            let too_many = says.len() - number_of(ChildSays::Lost) < needed;
            match result {
                Ok(()) => prop_assert!(number_of(ChildSays::Yes) >= needed),
                Err(error) if too_many => prop_assert!(error.is_lost()),
                Err(error) => prop_assert!(number_of(ChildSays::Yes) < needed && !error.is_lost()),
            }
        }
    }
}
