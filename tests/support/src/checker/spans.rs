//! Stretches of time, and sets of them.

use crate::history::Nanos;

/// From the first moment to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    pub(super) from: Nanos,
    pub(super) until: Nanos,
}

impl Span {
    pub(super) const fn new(from: Nanos, until: Nanos) -> Self {
        Self { from, until }
    }

    pub(super) const fn overlaps(self, other: Self) -> bool {
        self.from <= other.until && other.from <= self.until
    }

    pub(super) const fn len(self) -> Nanos {
        self.until.saturating_sub(self.from)
    }

    /// The span that ends `after` later.
    pub(super) const fn lengthened(self, after: Nanos) -> Self {
        Self::new(self.from, self.until.saturating_add(after))
    }
}

/// Spans in order that do not touch.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans(Vec<Span>);

impl Spans {
    pub(super) fn of(mut spans: Vec<Span>) -> Self {
        spans.sort_unstable();
        let mut merged: Vec<Span> = Vec::with_capacity(spans.len());
        for span in spans {
            match merged.last_mut() {
                Some(last) if span.from <= last.until => last.until = last.until.max(span.until),
                _ => merged.push(span),
            }
        }
        Self(merged)
    }

    /// When spans weigh more than `most` together.
    pub(super) fn of_more_than(most: u32, spans: Vec<(Span, u32)>) -> Self {
        if most == 0 {
            return Self::of(spans.into_iter().map(|(span, _)| span).collect());
        }
        // What begins when another ends touches it.
        let ends = spans.into_iter().flat_map(|(span, weight)| {
            let weight = i64::from(weight);
            [(span.from, false, weight), (span.until, true, -weight)]
        });
        let mut ends: Vec<_> = ends.collect();
        ends.sort_unstable();
        let (mut all, mut since) = (0, None);
        let mut above = Vec::new();
        for (t, _, change) in ends {
            all += change;
            if all > i64::from(most) {
                since.get_or_insert(t);
            } else if let Some(from) = since.take() {
                above.push(Span::new(from, t));
            }
        }
        Self::of(above)
    }

    /// Those that overlap a span.
    pub(super) fn within(&self, span: Span) -> &[Span] {
        let first = self.0.partition_point(|own| own.until < span.from);
        let end = self.0.partition_point(|own| own.from <= span.until);
        &self.0[first..end.max(first)]
    }

    pub(super) fn hits(&self, span: Span) -> bool {
        !self.within(span).is_empty()
    }

    /// How much of a span they cover.
    pub(super) fn cover(&self, span: Span) -> Nanos {
        let inside = |own: &Span| own.until.min(span.until) - own.from.max(span.from);
        self.within(span).iter().map(inside).sum()
    }

    /// The stretches of a span that they do not cover.
    pub(super) fn gaps(&self, span: Span) -> Vec<Span> {
        let mut gaps = Vec::new();
        let mut from = span.from;
        for own in self.within(span) {
            if own.from > from {
                gaps.push(Span::new(from, own.from));
            }
            from = from.max(own.until);
        }
        if from < span.until {
            gaps.push(Span::new(from, span.until));
        }
        gaps
    }
}
