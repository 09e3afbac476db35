//! Multi-receives, and the transfers into them.

use crate::request::RequestId;

/// What a multi-receive keeps of the transfers into it, and a transfer of its multi-receive.
#[derive(Debug, Default)]
pub(crate) struct Multi {
    /// A multi-receive: transfers into it that have not ended.
    children: u32,
    /// A multi-receive: messages of it that its owner has not taken.
    untaken: u32,
    /// A multi-receive: bytes filled.
    filled: u64,
    /// A transfer into one: the multi-receive, and the place in its buffer.
    parent: Option<(RequestId, u64)>,
}

impl Multi {
    /// Transfers into it that have not ended.
    pub(crate) fn children(&self) -> u32 {
        self.children
    }

    /// A transfer into it begins.
    pub(crate) fn child_begins(&mut self) {
        self.children += 1;
    }

    /// A transfer into it has ended.
    pub(crate) fn child_ended(&mut self) {
        self.children -= 1;
    }

    /// A message of it is there for its owner.
    pub(crate) fn delivered(&mut self) {
        self.untaken += 1;
    }

    /// Its owner has taken a message.
    pub(crate) fn taken(&mut self) {
        self.untaken = self.untaken.saturating_sub(1);
    }

    /// Whether its owner has not taken all of its messages.
    pub(crate) fn has_untaken(&self) -> bool {
        self.untaken > 0
    }

    /// Returns how many bytes are filled.
    pub(crate) fn filled(&self) -> u64 {
        self.filled
    }

    /// A message takes this many bytes of the buffer.
    pub(crate) fn fill(&mut self, bytes: u64) {
        self.filled += bytes;
    }

    /// The multi-receive of a transfer, and the place in its buffer.
    pub(crate) fn parent(&self) -> Option<(RequestId, u64)> {
        self.parent
    }

    /// Notes the multi-receive of a transfer, and the place in its buffer.
    pub(crate) fn set_parent(&mut self, parent: RequestId, at: u64) {
        self.parent = Some((parent, at));
    }
}
