//! Windows: memory of a rank that other ranks put to, get from and compute in.
//!
//! The memory of a window is a [`Region`](crate::Region): other processes may write it at any moment, so it
//! is never a slice, and its owner reads and writes it by copies. What a copy finds while an operation is
//! under way may be a mixture; what it finds after [`World::fence`], or after a message that the initiator
//! sent when its operation had ended, is what that operation left.

use doorbell_fabric::atomics::{Arithmetic, Element};
use doorbell_fabric::memory::RegionSlice;
use doorbell_job::error::Error;
use doorbell_pml::{Aborted, PmlError, WindowAccess, WindowArgs, WindowCounts, WindowMemory};

use crate::progress::WindowAddress;
use crate::world::World;

/// Names a window of a rank: what others need to reach it. It is plain data, to be sent to them.
///
/// ```
/// use doorbell::{RemoteWindow, WindowAccess};
/// let world = doorbell::init()?;
/// let window = world.window(world.region(64)?.whole(), WindowAccess::ALL)?;
/// let remote = RemoteWindow::from_bytes(window.remote().to_bytes());
/// assert_eq!((remote.rank(), remote.len()), (0, 64));
/// # Ok::<(), doorbell::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteWindow {
    rank: u32,
    key: u32,
    length: u64,
}

impl RemoteWindow {
    /// The number of bytes of [`RemoteWindow::to_bytes`].
    pub const BYTES: usize = 16;

    /// Returns the rank that owns the window.
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the length of the window in bytes.
    pub const fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns it as bytes, to be sent to another rank of the same world.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.rank.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.key.to_le_bytes());
        bytes[8..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Returns the window that these bytes name. Bytes that are none of [`RemoteWindow::to_bytes`] name a
    /// window that its owner refuses.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let word = u64::from_le_bytes;
        let [first, length] = [0, 8].map(|at| bytes[at..at + 8].try_into().map_or(0, word));
        Self {
            rank: first as u32,
            key: (first >> 32) as u32,
            length,
        }
    }

    pub(crate) fn at(self, offset: u64) -> WindowAddress {
        WindowAddress {
            rank: self.rank,
            key: self.key,
            offset,
        }
    }
}

/// A window of this rank, made by [`World::window`]. Dropping it closes it, as [`Window::close`] does.
///
/// Its memory is read and written by copies, since other ranks may write it at the same time:
///
/// ```
/// use doorbell::WindowAccess;
/// let world = doorbell::init()?;
/// let window = world.window(world.region(64)?.whole(), WindowAccess::READ)?;
/// window.write(8, b"for all to read");
/// let mut bytes = [0; 15];
/// world.get(window.remote(), 8, &mut bytes)?;
/// assert_eq!(&bytes, b"for all to read");
/// # Ok::<(), doorbell::Error>(())
/// ```
#[must_use = "a window that is dropped is closed"]
pub struct Window<'w> {
    world: &'w World,
    slice: RegionSlice,
    remote: RemoteWindow,
    is_open: bool,
}

impl Window<'_> {
    /// Returns what other ranks need to reach it.
    pub fn remote(&self) -> RemoteWindow {
        self.remote
    }

    /// Returns its memory.
    pub fn slice(&self) -> &RegionSlice {
        &self.slice
    }

    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        self.slice.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.slice.is_empty()
    }

    /// Copies bytes from offset `at` out; returns how many there were.
    pub fn read(&self, at: usize, into: &mut [u8]) -> usize {
        self.slice.copy_to(at, into)
    }

    /// Copies bytes in at offset `at`; returns how many fitted.
    pub fn write(&self, at: usize, bytes: &[u8]) -> usize {
        self.slice.write(at, bytes)
    }

    /// Returns the element at byte `at`: in one step, where it is aligned and at most eight bytes wide, so
    /// that it is no mixture of two values. `None` when it is not all inside.
    ///
    /// ```
    /// use doorbell::{Arithmetic, WindowAccess};
    /// let world = doorbell::init()?;
    /// let window = world.window(world.region(64)?.whole(), WindowAccess::ALL)?;
    /// window.store(16, 40u64);
    /// world.accumulate(window.remote(), 16, Arithmetic::Sum, &[2u64])?;
    /// assert_eq!(window.load(16), Some(42u64));
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    pub fn load<T: Atomic>(&self, at: usize) -> Option<T> {
        let mut value = [T::ZERO];
        let bytes = T::bytes_mut(&mut value);
        match self.slice.update(at, bytes.len(), |_| None) {
            Some(word) => bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]),
            None if self.slice.copy_to(at, bytes) < bytes.len() => return None,
            None => {}
        }
        Some(value[0])
    }

    /// Stores an element at byte `at`, in one step where [`Window::load`] reads it in one. Returns whether it
    /// is all inside; otherwise nothing is stored.
    pub fn store<T: Atomic>(&self, at: usize, value: T) -> bool {
        let value = [value];
        let bytes = T::bytes(&value);
        let mut word = [0; 8];
        if bytes.len() <= word.len() {
            word[..bytes.len()].copy_from_slice(bytes);
            if self
                .slice
                .update(at, bytes.len(), |_| Some(u64::from_le_bytes(word)))
                .is_some()
            {
                return true;
            }
        }
        let inside = at
            .checked_add(bytes.len())
            .is_some_and(|end| end <= self.slice.len());
        inside && self.slice.write(at, bytes) == bytes.len()
    }

    /// Returns how many operations on it have been done, by all ranks together.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn counts(&self) -> Result<WindowCounts, Error> {
        let key = u64::from(self.remote.key);
        let counts = self
            .world
            .engine()
            .call(move |core| core.pml.window_counts(key))?;
        Ok(counts.unwrap_or_default())
    }

    /// Closes the window. Operations that name it from now on end with
    /// [`OperationError::UnknownKey`](crate::OperationError::UnknownKey) at their initiators; those under way
    /// are cut off, and end with [`OperationError::Closed`](crate::OperationError::Closed). When it returns,
    /// no other rank writes the memory any more. To let operations end first, call [`World::fence`] at all
    /// ranks.
    ///
    /// # Errors
    /// [`Error::Ended`]; [`Error::Busy`] in a hook, and then a later call that opens or closes a
    /// window closes this one as well.
    pub fn close(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        if !std::mem::replace(&mut self.is_open, false) {
            return Ok(());
        }
        self.world.close_window(self.remote.key)
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        // An engine that has ended has closed all windows; one that is busy does it later.
        let _ = self.end();
    }
}

impl std::fmt::Debug for Window<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Window({:?})", self.remote)
    }
}

impl World {
    /// Opens a window: memory of this rank that every rank of the world, itself included, may reach as
    /// `access` allows, by operations that name [`Window::remote`]. No other rank takes part in the call;
    /// [`World::windows`] opens one at every rank.
    ///
    /// The memory stays readable and writable through the region. An operation ends when this rank has done
    /// it, which happens in its calls (`progress.mode = inline`) or in its progress thread (`dedicated`).
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn window(&self, slice: RegionSlice, access: WindowAccess) -> Result<Window<'_>, Error> {
        self.close_left_windows()?;
        loop {
            let key = self.window_keys().next();
            let args = WindowArgs {
                key: u64::from(key),
                base: 0,
                memory: WindowMemory::Region(slice.clone()),
                access,
            };
            match self.engine().call(move |core| core.pml.open_window(args))? {
                // All other keys have been given out since, and this one is open still.
                Err(PmlError::KeyTaken { .. }) => {}
                Err(error) => return Err(error.into()),
                Ok(()) => {
                    let remote = RemoteWindow {
                        rank: self.rank(),
                        key,
                        length: slice.len() as u64,
                    };
                    return Ok(Window {
                        world: self,
                        slice,
                        remote,
                        is_open: true,
                    });
                }
            }
        }
    }

    fn close_window(&self, key: u32) -> Result<(), Error> {
        self.close_left_windows()?;
        let closed = self.close_now(key);
        if matches!(closed, Err(Error::Busy)) {
            self.window_keys().leave(key);
        }
        closed
    }

    /// Closes the windows that were dropped while the engine was busy.
    fn close_left_windows(&self) -> Result<(), Error> {
        while let Some(key) = self.window_keys().left() {
            self.close_now(key)?;
            self.window_keys().forget(key);
        }
        Ok(())
    }

    fn close_now(&self, key: u32) -> Result<(), Error> {
        let close = move |core: &mut crate::progress::Core| {
            let aborted = core.pml.close_window(u64::from(key));
            if aborted == Aborted::Wait {
                core.progress();
            }
            aborted
        };
        while self.engine().call(close)? == Aborted::Wait {
            // A rail finishes the piece that it is at.
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// The windows of all ranks, made by [`World::windows`].
#[derive(Debug)]
pub struct Windows<'w> {
    own: Window<'w>,
    all: Box<[RemoteWindow]>,
}

impl<'w> Windows<'w> {
    pub(crate) fn new(own: Window<'w>, all: Box<[RemoteWindow]>) -> Self {
        Self { own, all }
    }

    /// Returns the window of this rank.
    pub fn own(&self) -> &Window<'w> {
        &self.own
    }

    /// Returns the window of a rank.
    ///
    /// # Panics
    /// When there is no such rank, as indexing does.
    pub fn of(&self, rank: u32) -> RemoteWindow {
        self.all[rank as usize]
    }

    /// Returns the windows in the order of ranks.
    pub fn all(&self) -> &[RemoteWindow] {
        &self.all
    }
}

/// The types of elements that operations compute with: integers of 8 to 128 bits and floating numbers, in the
/// byte order of the processor.
pub trait Atomic: sealed::Elements {}

pub(crate) mod sealed {
    use doorbell_fabric::atomics::Element;

    /// Elements as bytes.
    pub trait Elements: Copy + 'static {
        /// The number of this type in the table of all operations.
        const ELEMENT: Element;
        const ZERO: Self;

        fn bytes(elements: &[Self]) -> &[u8];

        fn bytes_mut(elements: &mut [Self]) -> &mut [u8];
    }
}

macro_rules! elements {
    ($($of:ty: $element:ident),* $(,)?) => {
        $(
            impl sealed::Elements for $of {
                const ELEMENT: Element = Element::$element;
                const ZERO: Self = 0 as $of;

                #[inline]
                fn bytes(elements: &[Self]) -> &[u8] {
                    zerocopy::IntoBytes::as_bytes(elements)
                }

                #[inline]
                fn bytes_mut(elements: &mut [Self]) -> &mut [u8] {
                    zerocopy::IntoBytes::as_mut_bytes(elements)
                }
            }

            impl Atomic for $of {}
        )*
    };
}

elements! {
    i8: Int8, u8: Uint8, i16: Int16, u16: Uint16, i32: Int32, u32: Uint32, i64: Int64, u64: Uint64,
    i128: Int128, u128: Uint128, f32: Float, f64: Double,
}

/// Bytes of the elements of one operation, at most.
pub(crate) const ATOMIC_MOST: usize = doorbell_pml::ATOMIC_MOST;

/// Refuses an operation that needs operands to compare with where there are none.
pub(crate) fn without_comparison(arithmetic: Arithmetic) -> Result<(), Error> {
    match arithmetic.has_operand() {
        true => Err(Error::Layout {
            what: "a conditional swap compares: use `compare_and_swap`".to_owned(),
        }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_window_comes_back_from_its_bytes() {
        let remote = RemoteWindow {
            rank: 0x0102_0304,
            key: u32::MAX,
            length: u64::MAX - 1,
        };
        assert_eq!(RemoteWindow::from_bytes(remote.to_bytes()), remote);
        assert_eq!(remote.to_bytes()[..4], [4, 3, 2, 1]);
    }
}
