//! What the thread that makes progress between calls does with the library.

use doorbell::takeover::{Calls, Progress};

use crate::state::{lock, nap};

/// The library, for its thread.
#[derive(Debug)]
pub(crate) struct Library;

impl Progress for Library {
    fn calls(&self) -> Option<Calls> {
        let core = lock();
        (!core.stop).then_some(Calls {
            made: core.activity,
            waits: core.waiting > 0,
        })
    }

    fn keep(&self) {
        let mut core = lock();
        if let Some(live) = &mut core.live
            && live.housekeeping() > 0
        {
            core.wake();
        }
    }

    fn look(&self) -> usize {
        let mut core = lock();
        let Some(live) = &mut core.live else {
            return 0;
        };
        let work = live.look();
        if work > 0 {
            core.wake();
        }
        work
    }

    fn sleep(&self) -> bool {
        let mut core = lock();
        // The library ends meanwhile, or waits make progress themselves.
        if core.stop || core.waiting > 0 {
            return true;
        }
        let Some(live) = &mut core.live else {
            return false;
        };
        live.housekeeping();
        live.member.flush();
        core.thread_has_work = false;
        !nap(core, None, true).thread_has_work
    }
}
