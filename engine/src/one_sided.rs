//! One-sided operations: the calls of a world on windows.

use std::time::{Duration, Instant};

use doorbell_fabric::atomics::Arithmetic;
use doorbell_fabric::memory::RegionSlice;
use doorbell_job::error::{Awaited, Error};
use doorbell_pml::WindowAccess;

use crate::collect;
use crate::progress::{Envelope, OperationKind, RegionOperation};
use crate::request::{Phase, Request, RequestKind};
use crate::scope;
use crate::window::{ATOMIC_MOST, Atomic, RemoteWindow, Windows, without_comparison};
use crate::within::Within;
use crate::world::{USER, World};

impl World {
    /// Opens a window at every rank: a collective call. The windows may have different lengths and access.
    ///
    /// ```
    /// use doorbell::{Arithmetic, WindowAccess};
    /// let world = doorbell::init()?;
    /// let counter = world.windows(world.region(8)?.whole(), WindowAccess::ALL)?;
    /// // At rank 0, for all ranks:
    /// let ticket: u64 = world.fetch_accumulate(counter.of(0), 0, Arithmetic::Sum, 1)?;
    /// assert!(ticket < u64::from(world.size()));
    /// world.fence()?; // before the windows are closed
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`World::window`] and [`World::allgather`].
    pub fn windows(&self, slice: RegionSlice, access: WindowAccess) -> Result<Windows<'_>, Error> {
        self.within(self.limit()).windows(slice, access)
    }

    /// Puts `data` into a window, from its byte `at` on, and returns when it is there.
    ///
    /// Each operation is done exactly once, also where it goes over another rail after a failure. Operations
    /// of up to some KiB (an eager message of the rail) on windows of one rank are done in the order of their
    /// calls, and in order with messages; longer ones begin in that order.
    ///
    /// ```
    /// use doorbell::WindowAccess;
    /// let world = doorbell::init()?;
    /// let window = world.window(world.region(64)?.whole(), WindowAccess::WRITE)?;
    /// world.put(window.remote(), 3, b"halo")?;
    /// let mut bytes = [0; 4];
    /// window.read(3, &mut bytes);
    /// assert_eq!(&bytes, b"halo");
    /// let error = world.put(window.remote(), 61, b"halo").unwrap_err();
    /// assert_eq!(error.code(), "one-sided"); // one byte too far
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OneSided`] for what the owner of the window refuses: a key of no open window, bytes
    /// outside of it, an access that it does not allow, a window that was closed meanwhile.
    /// [`Error::NoSuchRank`]; [`Error::PeerLost`], and [`Error::Timeout`] after `wait.deadline`: the
    /// operation may have been done all the same, once.
    pub fn put(&self, window: RemoteWindow, at: u64, data: &[u8]) -> Result<(), Error> {
        self.within(self.limit()).put(window, at, data)
    }

    /// Gets bytes out of a window, from its byte `at` on, and returns when they are here.
    ///
    /// # Errors
    /// Those of [`World::put`].
    pub fn get(&self, window: RemoteWindow, at: u64, into: &mut [u8]) -> Result<(), Error> {
        self.within(self.limit()).get(window, at, into)
    }

    /// Computes in a window, from its byte `at` on: `element = element OP operand` for each operand, and
    /// returns when it is done. Each element changes in one step: operations of all ranks on it, the owner's
    /// own among them, are done one after the other. Where it is aligned and of 1, 2, 4 or 8 bytes, the step
    /// is one for atomic instructions of the owner as well ([`Window::load`](crate::Window::load)).
    ///
    /// ```
    /// use doorbell::{Arithmetic, WindowAccess};
    /// let world = doorbell::init()?;
    /// let window = world.window(world.region(64)?.whole(), WindowAccess::ALL)?;
    /// world.put(window.remote(), 0, &1.5f64.to_ne_bytes())?;
    /// world.accumulate(window.remote(), 0, Arithmetic::Max, &[0.5f64, 2.0])?;
    /// assert_eq!((window.load(0), window.load(8)), (Some(1.5f64), Some(2.0f64)));
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`World::put`]; [`Error::Layout`] for an operation that there is not on this type. More than
    /// 4,096 bytes of elements are several operations: after an error, some of them may have been done.
    pub fn accumulate<T: Atomic>(
        &self,
        window: RemoteWindow,
        at: u64,
        arithmetic: Arithmetic,
        operands: &[T],
    ) -> Result<(), Error> {
        self.within(self.limit())
            .accumulate(window, at, arithmetic, operands)
    }

    /// Computes one element of a window, at its byte `at`, and returns what it was before. With
    /// [`Arithmetic::Read`] nothing changes, and the operand is not used; with [`Arithmetic::Swap`] the
    /// operand takes the element's place.
    ///
    /// # Errors
    /// Those of [`World::accumulate`].
    pub fn fetch_accumulate<T: Atomic>(
        &self,
        window: RemoteWindow,
        at: u64,
        arithmetic: Arithmetic,
        operand: T,
    ) -> Result<T, Error> {
        self.within(self.limit())
            .fetch_accumulate(window, at, arithmetic, operand)
    }

    /// Stores `desired` in the element at byte `at` of a window, if it equals `expected`. Returns what it was
    /// before: `expected`, if it was stored.
    ///
    /// ```
    /// use doorbell::WindowAccess;
    /// let world = doorbell::init()?;
    /// let window = world.window(world.region(8)?.whole(), WindowAccess::ALL)?;
    /// let lock = window.remote();
    /// assert_eq!(world.compare_and_swap(lock, 0, 0u64, 7)?, 0); // taken
    /// assert_eq!(world.compare_and_swap(lock, 0, 0u64, 9)?, 7); // it is taken
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`World::accumulate`].
    pub fn compare_and_swap<T: Atomic>(
        &self,
        window: RemoteWindow,
        at: u64,
        expected: T,
        desired: T,
    ) -> Result<T, Error> {
        self.within(self.limit())
            .compare_and_swap(window, at, expected, desired)
    }

    /// Starts putting a region's slice into a window, outside any scope. Do not change the bytes before the
    /// request has ended: the window would get a mixture.
    ///
    /// ```
    /// use doorbell::WindowAccess;
    /// let world = doorbell::init()?;
    /// let window = world.window(world.region(64)?.whole(), WindowAccess::ALL)?;
    /// let own = world.region(5)?;
    /// own.write(0, b"later");
    /// let put = world.iput_region(window.remote(), 8, own.whole())?;
    /// assert_eq!(put.wait()?.len, 5);
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// An unknown or lost rank. What the owner of the window refuses is the error of the request.
    pub fn iput_region(
        &self,
        window: RemoteWindow,
        at: u64,
        slice: RegionSlice,
    ) -> Result<Request<'_>, Error> {
        self.region_operation(window, at, slice, OperationKind::Put)
    }

    /// Starts getting bytes of a window into a region's slice, outside any scope.
    ///
    /// # Errors
    /// Those of [`World::iput_region`].
    pub fn iget_region(
        &self,
        window: RemoteWindow,
        at: u64,
        slice: RegionSlice,
    ) -> Result<Request<'_>, Error> {
        self.region_operation(window, at, slice, OperationKind::Get)
    }

    fn region_operation(
        &self,
        window: RemoteWindow,
        at: u64,
        slice: RegionSlice,
        kind: OperationKind,
    ) -> Result<Request<'_>, Error> {
        let is_put = kind == OperationKind::Put;
        let at = window.at(at);
        let token = self
            .engine()
            .operate_region(RegionOperation { at, slice, is_put })?;
        Ok(Request {
            world: self,
            phase: Phase::Open(token),
            lent: None,
            envelope: Envelope::to(USER, at.rank, 0, false),
            kind: RequestKind::Operation(kind.name()),
        })
    }

    /// Waits until every operation on windows of `rank` has ended that this rank has started and not waited
    /// for, whatever became of its request: they are done then. How each of them ended is its request's to
    /// report.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`]; [`Error::PeerLost`]; [`Error::Timeout`].
    pub fn flush(&self, rank: u32) -> Result<(), Error> {
        self.within(self.limit()).flush(rank)
    }

    /// Waits until every operation that any rank has started before is done: a collective call, which ends
    /// with [`World::barrier`]. After it, each owner reads in its windows what they have left.
    ///
    /// # Errors
    /// Those of [`World::barrier`].
    pub fn fence(&self) -> Result<(), Error> {
        self.within(self.limit()).fence()
    }
}

impl<'w> Within<'w> {
    /// Opens a window at every rank with this deadline; see [`World::windows`].
    ///
    /// # Errors
    /// Those of [`World::windows`].
    pub fn windows(self, slice: RegionSlice, access: WindowAccess) -> Result<Windows<'w>, Error> {
        let own = self.world.window(slice, access)?;
        let mut all = vec![0; RemoteWindow::BYTES * self.world.size() as usize];
        collect::allgather(self.world, &own.remote().to_bytes(), &mut all, self.limit)?;
        let all = all.as_chunks().0.iter().copied();
        Ok(Windows::new(own, all.map(RemoteWindow::from_bytes).collect()))
    }

    /// Puts with this deadline; see [`World::put`].
    ///
    /// # Errors
    /// Those of [`World::put`].
    pub fn put(self, window: RemoteWindow, at: u64, data: &[u8]) -> Result<(), Error> {
        let what = (OperationKind::Put, window.at(at));
        scope::operate(self.world, what, data, &mut [], self.limit)
    }

    /// Gets with this deadline; see [`World::get`].
    ///
    /// # Errors
    /// Those of [`World::get`].
    pub fn get(self, window: RemoteWindow, at: u64, into: &mut [u8]) -> Result<(), Error> {
        let what = (OperationKind::Get, window.at(at));
        scope::operate(self.world, what, &[], into, self.limit)
    }

    /// Computes with this deadline; see [`World::accumulate`].
    ///
    /// # Errors
    /// Those of [`World::accumulate`].
    pub fn accumulate<T: Atomic>(
        self,
        window: RemoteWindow,
        at: u64,
        arithmetic: Arithmetic,
        operands: &[T],
    ) -> Result<(), Error> {
        without_comparison(arithmetic)?;
        let most = ATOMIC_MOST / size_of::<T>();
        if operands.len() <= most {
            let what = (OperationKind::Accumulate(arithmetic, T::ELEMENT), window.at(at));
            return scope::operate(self.world, what, T::bytes(operands), &mut [], self.limit);
        }
        self.scope(|scope| {
            for (number, part) in operands.chunks(most).enumerate() {
                let at = at.saturating_add((number * ATOMIC_MOST) as u64);
                // The scope waits for it, and returns the first error.
                let _ = scope.iaccumulate(window, at, arithmetic, part)?;
            }
            Ok(())
        })
    }

    /// Computes with this deadline, and returns what was there; see [`World::fetch_accumulate`].
    ///
    /// # Errors
    /// Those of [`World::fetch_accumulate`].
    pub fn fetch_accumulate<T: Atomic>(
        self,
        window: RemoteWindow,
        at: u64,
        arithmetic: Arithmetic,
        operand: T,
    ) -> Result<T, Error> {
        without_comparison(arithmetic)?;
        let operand = [operand];
        let operands = match arithmetic {
            Arithmetic::Read => &[][..],
            _ => &operand[..],
        };
        let what = (OperationKind::Fetch(arithmetic, T::ELEMENT), window.at(at));
        let mut before = [T::ZERO];
        let into = T::bytes_mut(&mut before);
        scope::operate(self.world, what, T::bytes(operands), into, self.limit)?;
        Ok(before[0])
    }

    /// Compares and swaps with this deadline; see [`World::compare_and_swap`].
    ///
    /// # Errors
    /// Those of [`World::compare_and_swap`].
    pub fn compare_and_swap<T: Atomic>(
        self,
        window: RemoteWindow,
        at: u64,
        expected: T,
        desired: T,
    ) -> Result<T, Error> {
        let kind = OperationKind::Fetch(Arithmetic::Cswap, T::ELEMENT);
        let mut before = [T::ZERO];
        let from = [desired, expected];
        let into = T::bytes_mut(&mut before);
        scope::operate(
            self.world,
            (kind, window.at(at)),
            T::bytes(&from),
            into,
            self.limit,
        )?;
        Ok(before[0])
    }

    /// Waits with this deadline for the operations on windows of a rank; see [`World::flush`].
    ///
    /// # Errors
    /// Those of [`World::flush`].
    pub fn flush(self, rank: u32) -> Result<(), Error> {
        let what = Awaited::OneSided {
            peer: rank,
            name: "operations",
        };
        self.world.wait_operations(Some(rank), self.limit, what)
    }

    /// Waits with this deadline for the operations of all ranks; see [`World::fence`].
    ///
    /// # Errors
    /// Those of [`World::fence`].
    pub fn fence(self) -> Result<(), Error> {
        let begun = Instant::now();
        let what = Awaited::Interface {
            what: "the one-sided operations that it has started",
        };
        self.world.wait_operations(None, self.limit, what)?;
        let left = self.limit.saturating_sub(begun.elapsed());
        collect::barrier(self.world, left.max(Duration::from_millis(1)))
    }
}
