//! The formats of entries.

use libfabric_sys::*;

/// A completion with everything that is known of it. Each format is a beginning of this one.
pub(crate) type Entry = fi_cq_tagged_entry;

/// The format of a queue's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// The context alone.
    Context,
    /// And the flags and the length.
    Message,
    /// And the place of the bytes and the remote data.
    Data,
    /// And the tag.
    Tagged,
}

impl Format {
    /// Returns the format of this number of libfabric's, if there is one. A client that leaves the choice to
    /// us gets the shortest.
    pub(crate) const fn of(format: fi_cq_format) -> Option<Self> {
        Some(match format {
            FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_CONTEXT => Self::Context,
            FI_CQ_FORMAT_MSG => Self::Message,
            FI_CQ_FORMAT_DATA => Self::Data,
            FI_CQ_FORMAT_TAGGED => Self::Tagged,
            _ => return None,
        })
    }

    /// Returns the number that libfabric has for it.
    pub(crate) const fn number(self) -> fi_cq_format {
        match self {
            Self::Context => FI_CQ_FORMAT_CONTEXT,
            Self::Message => FI_CQ_FORMAT_MSG,
            Self::Data => FI_CQ_FORMAT_DATA,
            Self::Tagged => FI_CQ_FORMAT_TAGGED,
        }
    }

    /// Returns the bytes of an entry: a multiple of eight.
    #[inline]
    pub(crate) const fn size(self) -> usize {
        match self {
            Self::Context => size_of::<fi_cq_entry>(),
            Self::Message => size_of::<fi_cq_msg_entry>(),
            Self::Data => size_of::<fi_cq_data_entry>(),
            Self::Tagged => size_of::<fi_cq_tagged_entry>(),
        }
    }

    /// Writes what this format has of a completion.
    ///
    /// # Safety
    /// [`Format::size`] bytes at `to` may be written.
    #[inline(always)]
    pub(crate) unsafe fn write(self, to: *mut u8, entry: &Entry) {
        let &Entry {
            op_context,
            flags,
            len,
            buf,
            data,
            ..
        } = entry;
        match self {
            // SAFETY: of the format's size, and unaligned writes need no more.
            Self::Context => unsafe {
                to.cast::<fi_cq_entry>()
                    .write_unaligned(fi_cq_entry { op_context })
            },
            Self::Message => {
                let short = fi_cq_msg_entry {
                    op_context,
                    flags,
                    len,
                };
                // SAFETY: of the format's size, as above.
                unsafe { to.cast::<fi_cq_msg_entry>().write_unaligned(short) }
            }
            Self::Data => {
                let short = fi_cq_data_entry {
                    op_context,
                    flags,
                    len,
                    buf,
                    data,
                };
                // SAFETY: of the format's size, as above.
                unsafe { to.cast::<fi_cq_data_entry>().write_unaligned(short) }
            }
            // SAFETY: of the format's size, as above.
            Self::Tagged => unsafe { to.cast::<Entry>().write_unaligned(*entry) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_writes_its_beginning_of_an_entry_and_not_a_byte_more() {
        let entry = Entry {
            op_context: std::ptr::without_provenance_mut(1),
            flags: 2,
            len: 3,
            buf: std::ptr::without_provenance_mut(4),
            data: 5,
            tag: 6,
        };
        for (number, words) in [
            (FI_CQ_FORMAT_UNSPEC, 1),
            (FI_CQ_FORMAT_CONTEXT, 1),
            (FI_CQ_FORMAT_MSG, 3),
            (FI_CQ_FORMAT_DATA, 5),
            (FI_CQ_FORMAT_TAGGED, 6),
        ] {
            let format = Format::of(number).unwrap();
            assert_eq!(format.size(), words * 8);
            let mut memory = [0xff_u64; 7];
            // SAFETY: it has room for the longest entry.
            unsafe { format.write(memory.as_mut_ptr().cast(), &entry) };
            let expected: Vec<u64> = (0..7)
                .map(|at| if at < words as u64 { at + 1 } else { 0xff })
                .collect();
            assert_eq!(memory.to_vec(), expected);
            assert_eq!(Format::of(format.number()), Some(format));
        }
        assert_eq!(Format::of(FI_CQ_FORMAT_TAGGED + 1), None);
    }
}
