//! Faults that are done between two turns: to the link, to a function as a whole, to the model itself (8.8).

use crate::fault::{Action, Target};
use crate::function::Function;
use crate::registers::resource;
use crate::world::World;

/// BAR0 as it is described where it is too small for any table.
pub(crate) const SMALL: usize = 4096;

impl World {
    /// Does the deeds whose moment has come.
    pub(crate) fn deeds(&mut self) {
        for (target, action) in self.context.faults.deeds(self.context.now) {
            self.deed(target, action);
        }
    }

    fn deed(&mut self, target: Target, action: Action) {
        match action {
            Action::LinkDown => self.link(false),
            Action::LinkUp => self.link(true),
            Action::LoseFilters => self.adapter.filters.clear(None),
            Action::Mtu(mtu) => {
                self.adapter.link.mtu = mtu.into();
                self.notify_all();
            }
            Action::Fatal => {
                // [M] Which error number a fatal error has: 4, busy.
                (self.adapter.link.status, self.adapter.link.error) = (1, 4);
                self.notify_all();
            }
            Action::Torn(time) => {
                self.adapter.torn = time.map_or(u64::MAX, |time| self.context.after(time));
                self.notify_all();
            }
            Action::Die => self.is_over = true,
            Action::Restart => {
                for index in 0..self.functions.len() {
                    self.reset(index);
                    self.disconnect(index);
                }
            }
            action => {
                for index in (0..self.functions.len()).filter(|index| target.scope.has(*index)) {
                    self.of_function(index, target, action);
                }
            }
        }
    }

    fn of_function(&mut self, index: usize, target: Target, action: Action) {
        match action {
            Action::Reset => self.reset(index),
            Action::Disconnect => self.disconnect(index),
            Action::Mac(mac) => {
                self.functions[index].mac = mac;
                self.notify_all();
            }
            Action::Removed => self.functions[index].remove(),
            Action::Spurious => self.functions[index].io.signal(target.index.unwrap_or(0)),
            action => {
                let function = &mut self.functions[index];
                // Once is enough, however often it is done.
                if !function.table_faults.contains(&action) {
                    function.table_faults.push(action);
                }
                function.write_table();
            }
        }
    }

    /// Ends a client's connection; its reader reports that, and the function is reset.
    fn disconnect(&self, index: usize) {
        if let Some(line) = &self.functions[index].line {
            line.close();
        }
    }

    /// The link goes down or up. Going down, it may take filters along. [M]
    fn link(&mut self, up: bool) {
        if self.adapter.link.up == up {
            return;
        }
        self.adapter.link.up = up;
        if !up {
            self.adapter.link.downs += 1;
            if self.context.options.behaviour.link_loses_filters {
                self.adapter.filters.clear(None);
            }
        }
        self.notify_all();
    }

    /// Writes every notify area again.
    pub(crate) fn notify_all(&mut self) {
        for function in &mut self.functions {
            function.notify(&self.context, &self.adapter, true);
        }
    }

    /// A notify area that was torn for a while is whole again.
    pub(crate) fn mend(&mut self) {
        if self.adapter.torn != 0 && self.adapter.torn <= self.context.now {
            self.adapter.torn = 0;
            self.notify_all();
        }
    }
}

impl Function {
    /// Removes the function as if it had been pulled out: everything reads as ones, and nothing happens any
    /// more.
    fn remove(&mut self) {
        self.soft_reset();
        self.is_removed = true;
        self.io.registers.fill(0xff);
    }

    /// Spoils the table as the faults have it.
    pub(crate) fn spoil_table(&mut self) {
        let begin = self.layout.entries_at();
        for fault in &self.table_faults {
            match *fault {
                Action::BadMagic => self.io.registers.put(0, 0x1234_5678),
                Action::BadVersion => self.io.registers.put(4, 7),
                Action::TableCut(count) => {
                    let count = count.min(self.layout.entry_count());
                    self.io.registers.put_bytes(begin + 12 * count, &[0; 12]);
                }
                Action::Missing(kind) => self.spoil_entries(kind, |entry| entry[0] = resource::UNKNOWN),
                Action::CountZero(kind) => self.spoil_entries(kind, |entry| entry[8..].fill(0)),
                // The reported length of the region.
                _ => {}
            }
        }
    }

    fn spoil_entries(&self, kind: u8, spoil: impl Fn(&mut [u8; 12])) {
        let mut at = self.layout.entries_at();
        loop {
            let mut entry = [0; 12];
            self.io.registers.bytes(at, &mut entry);
            match entry[0] {
                0 => return,
                found if found == kind => {
                    spoil(&mut entry);
                    self.io.registers.put_bytes(at, &entry);
                }
                _ => {}
            }
            at += 12;
        }
    }

    /// The length of BAR0 that is reported.
    pub(crate) fn bar_length(&self) -> usize {
        match self.table_faults.contains(&Action::SmallBar) {
            true => SMALL,
            false => self.layout.length,
        }
    }
}

/// Whether a command's outcome is changed by a fault.
pub(crate) fn outcome(
    fault: Option<Action>,
    result: Result<crate::devcmd::Args, u8>,
) -> Result<crate::devcmd::Args, u8> {
    match (fault, result) {
        (Some(Action::Error(number)), _) => Err(number),
        (Some(Action::Zeros), _) => Ok([0; 15]),
        (Some(Action::Pending), Ok(mut results)) => {
            results[0] = 1;
            Ok(results)
        }
        (Some(Action::Errno(number)), Ok(mut results)) => {
            (results[0], results[1]) = (0, number.into());
            Ok(results)
        }
        (_, result) => result,
    }
}
