//! The rules that the sources have wrong, for the tests alone: each can be switched on there, to see that the
//! judges notice. In a program this is nothing, takes no room, and is never so.

/// A wrong rule, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mutants(#[cfg(test)] pub(super) u8);

#[cfg(test)]
pub(super) type Rule = u8;
#[cfg(not(test))]
pub(super) type Rule = ();

/// Defines each rule as a number in the tests, and as nothing elsewhere.
macro_rules! rules {
    ($($(#[$about:meta])* $name:ident = $number:literal),* $(,)?) => {
        impl Mutants {
            $(
                $(#[$about])*
                #[cfg(test)]
                pub(super) const $name: Rule = $number;
                $(#[$about])*
                #[cfg(not(test))]
                pub(super) const $name: Rule = ();
            )*
        }
    };
}

rules! {
    /// The seed's test: stall while fewer are wanted than there are.
    INVERTED_STALL = 1,
    /// The seed's grant: the bank pays, and the loan is not raised.
    LOAN_NOT_RAISED = 2,
    /// The seed's receiver works with its own entry where the sender's is meant.
    OWN_INDEX = 3,
    /// Seed and code: the peak decays below what is in use, and a revocation returns that.
    REVOKES_WHAT_IS_IN_USE = 4,
    /// The seed's second scheme on top of the first: one's own epoch makes the borrower's counters decay,
    /// too.
    TWO_EPOCHS = 5,
    /// The seed's limit: checked before the grant is added.
    LIMIT_BEFORE = 6,
    /// A revocation goes below the minimum.
    BELOW_LEAST = 7,
}

impl Mutants {
    #[cfg(not(test))]
    pub(super) const NONE: Self = Self();
    #[cfg(test)]
    pub(super) const NONE: Self = Self(0);

    #[cfg(not(test))]
    #[inline]
    pub(super) const fn is(self, (): Rule) -> bool {
        false
    }

    #[cfg(test)]
    pub(super) const fn is(self, rule: Rule) -> bool {
        self.0 == rule
    }
}
