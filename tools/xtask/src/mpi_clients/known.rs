//! Failures that are not ours, with the project responsible for each, and why. If such a test passes, the run
//! does not fail.

use crate::results::Known;

pub(super) const KNOWN: &[Known] = &[];
