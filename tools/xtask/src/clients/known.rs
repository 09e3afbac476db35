//! Failures that are not ours, with who owns them and why. A test that passes meanwhile is no failure of the run.

use super::trees::Client;

/// A test that fails for a reason of its own.
#[derive(Debug)]
pub(crate) struct Known {
    client: Client,
    /// Its name, or how the names of several begin.
    test: &'static str,
    pub(crate) owner: &'static str,
    pub(crate) reason: &'static str,
}

const KNOWN: &[Known] = &[
    Known {
        client: Client::Reference,
        test: "test_abort_",
        owner: "the test",
        reason: "its second round waits with a handle that it has freed, and takes it for that of the queue allocated since",
    },
    Known {
        client: Client::Reference,
        test: "test_manage_local_and_inc_uh_rlength",
        owner: "the test",
        reason: "it unlinks an entry after its AUTO_UNLINK",
    },
];

/// Who owns the failure of a test, if that is known.
pub(crate) fn of(client: Client, test: &str) -> Option<&'static Known> {
    KNOWN
        .iter()
        .find(|known| known.client == client && test.starts_with(known.test))
}
