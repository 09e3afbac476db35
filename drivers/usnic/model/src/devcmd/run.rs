//! What the commands do (3.4 to 3.9, 8.2, 8.4).
//!
//! A command comes from the function's own block, or from the physical function's proxy: a virtual function's
//! own filters and queue pairs are a matter of policy, the proxy's are always done.

use crate::devcmd::table::{Command, Word, find};
use crate::devcmd::{Args, errno};
use crate::fault::{Point, deeds};
use crate::filter;
use crate::function::{Adapter, Function};
use crate::io::{Context, Wrong};
use crate::notify::{self, NotifyArea};
use crate::options::Policy;
use crate::registers::devcmd::ERROR;
use crate::stats;
use crate::violation::Kind;

/// Bytes of the firmware's description, and of its old form.
const FW_INFO: usize = 132;
const FW_INFO_OLD: usize = 128;

/// The function that a command came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The function itself.
    Own,
    /// The physical function, which is this one of all; its memory is meant.
    Proxy(usize),
}

/// All functions, and what they share.
pub(crate) struct Scene<'a> {
    pub(crate) context: &'a Context,
    pub(crate) functions: &'a mut [Function],
    pub(crate) adapter: &'a mut Adapter,
}

impl Scene<'_> {
    /// Runs a command of a function; one by the proxy may go wrong here, the others do where they began.
    pub(crate) fn run(&mut self, target: usize, origin: Origin, word: u32, args: &Args) -> Result<Args, u8> {
        let result = self.judge(target, origin, word, args);
        let number = usize::from(Word(word).number());
        let fault = match origin {
            Origin::Own => None,
            Origin::Proxy(_) => self.context.faults.action(Point::Command, target, number),
        };
        deeds::outcome(fault, result)
    }

    fn judge(&mut self, target: usize, origin: Origin, word: u32, args: &Args) -> Result<Args, u8> {
        let word = Word(word);
        let behaviour = &self.context.options.behaviour;
        let command = find(word, &behaviour.without);
        let is_own_vf = origin == Origin::Own && !self.functions[target].is_pf();
        let result = match command {
            None if word.is_nowait() && behaviour.nowait_silent => Ok(*args),
            None => Err(errno::UNKNOWN),
            Some(command) if is_own_vf && is_steering(command) && refused(self.context) != 0 => {
                Err(refused(self.context))
            }
            Some(command) if is_own_vf && is_life(command) && behaviour.vf_open != 0 => {
                Err(behaviour.vf_open)
            }
            Some(command) => self.command(target, origin, command, args),
        };
        if let (Err(number @ (errno::UNKNOWN | errno::BAD_STATE)), true) =
            (result, command.is_some() || !word.is_nowait())
        {
            let what = match number {
                errno::UNKNOWN => "a command that is not known here",
                _ => "a command that makes no sense in this state",
            };
            let wrong = Wrong::new(Kind::Devcmd, what)
                .at("cmd")
                .values(word.0.into(), number.into());
            self.functions[target]
                .io
                .violation(self.context, Some(("devcmd", 0)), wrong);
        }
        result
    }

    fn command(&mut self, target: usize, origin: Origin, command: Command, args: &Args) -> Result<Args, u8> {
        use Command as C;
        let context = self.context;
        let mut out = *args;
        match command {
            C::AddFilter => out[0] = self.add_filter(target, origin, args)?,
            C::DelFilter => self.adapter.filters.remove(target, args[0])?,
            C::QpEnable => self.functions[target].enable_qp(context, args[0])?,
            C::QpDisable => self.functions[target].disable_qp(args[0])?,
            C::Capability => self.capability(target, origin, args, &mut out)?,
            C::ProxyByIndex => return self.proxy(target, origin, args, |index| index),
            // 2: the VF's index is its devfn less one.
            C::ProxyByBdf => return self.proxy(target, origin, args, |bdf| (bdf & 0xff).wrapping_sub(1)),
            C::FwInfo => out[1] = self.fw_info(target, origin, args[0], args[1])?,
            C::FwInfoOld => {
                self.fw_info(target, origin, args[0], FW_INFO_OLD as u64)?;
            }
            C::StatsDump | C::StatsDumpAll | C::QpStatsDump => {
                let at = if command == C::QpStatsDump { 1 } else { 0 };
                self.dump(target, origin, args[at], args[at + 1])?;
            }
            C::StatsClear | C::QpStatsClear => self.functions[target].clear_stats(),
            C::Notify => out[1] = self.notify(target, args)?,
            C::SoftReset | C::HangReset => self.soft_reset(target),
            C::SetMacAddr => self.functions[target].mac = mac(args[0]),
            C::MacAddr => out[0] = packed(self.functions[target].mac),
            C::Status => out[0] = u64::from(self.adapter.link.up),
            _ => self.functions[target].command(context, self.adapter, command, args, &mut out)?,
        }
        Ok(out)
    }

    /// The function in whose memory a command's addresses are.
    fn memory(target: usize, origin: Origin) -> usize {
        match origin {
            Origin::Own => target,
            Origin::Proxy(pf) => pf,
        }
    }

    fn add_filter(&mut self, target: usize, origin: Origin, args: &Args) -> Result<u64, u8> {
        let behaviour = &self.context.options.behaviour;
        if behaviour.filter_needs_link && !self.adapter.link.up {
            return Err(errno::LINK_DOWN);
        }
        let length = usize::try_from(args[1])
            .ok()
            .filter(|length| *length <= filter::LONGEST);
        let mut room = [0; filter::LONGEST];
        let buffer = &mut room[..length.ok_or(errno::INVALID)?];
        let io = &mut self.functions[Self::memory(target, origin)].io;
        if !io.read(self.context, ("devcmd", 0), args[0], buffer) {
            return Err(errno::BAD_ADDRESS);
        }
        let asked = filter::parse(buffer, behaviour.filter_type)?;
        if asked.rq as usize >= self.functions[target].rq.len() {
            return Err(errno::INVALID);
        }
        self.adapter
            .filters
            .add(target, asked, behaviour.twin_filters)
            .map(u64::from)
    }

    /// CAPABILITY: a0 = 0 is yes; but for ADD_FILTER, a0 = 1 means that a1 is the highest filter type.
    fn capability(&self, target: usize, origin: Origin, args: &Args, out: &mut Args) -> Result<(), u8> {
        let behaviour = &self.context.options.behaviour;
        let command = u32::try_from(args[0])
            .ok()
            .and_then(|word| find(Word(word), &behaviour.without));
        let is_own_vf = origin == Origin::Own && !self.functions[target].is_pf();
        match command {
            Some(command) if is_own_vf && is_steering(command) && refused(self.context) != 0 => {
                Err(refused(self.context))
            }
            Some(Command::AddFilter) => {
                (out[0], out[1]) = (1, behaviour.filter_type.into());
                Ok(())
            }
            Some(Command::InitDevcmd2) if self.functions[target].devcmd2.is_none() => {
                out[0] = errno::UNKNOWN.into();
                Ok(())
            }
            Some(_) => {
                (out[0], out[1]) = (0, 0);
                Ok(())
            }
            None if behaviour.capability_by_error => Err(errno::UNKNOWN),
            None => {
                out[0] = errno::UNKNOWN.into();
                Ok(())
            }
        }
    }

    /// The physical function's way to the others: a0 becomes the inner status word, what follows the inner
    /// results (3.9).
    fn proxy(
        &mut self,
        target: usize,
        origin: Origin,
        args: &Args,
        index: impl Fn(u64) -> u64,
    ) -> Result<Args, u8> {
        if !self.functions[target].is_pf() || origin != Origin::Own {
            return Err(errno::NO_PERMISSION);
        }
        let vf = usize::try_from(index(args[0]))
            .ok()
            .and_then(|index| index.checked_add(1));
        let vf = vf.filter(|vf| *vf < self.functions.len()).ok_or(errno::INVALID)?;
        let word = u32::try_from(args[1]).map_err(|_| errno::INVALID)?;
        let mut inner = [0; 15];
        inner[..13].copy_from_slice(&args[2..]);
        let mut out = [0; 15];
        match self.run(vf, Origin::Proxy(target), word, &inner) {
            Ok(results) => out[1..].copy_from_slice(&results[..14]),
            Err(number) => (out[0], out[1]) = (ERROR.into(), number.into()),
        }
        Ok(out)
    }

    fn fw_info(&mut self, target: usize, origin: Origin, at: u64, size: u64) -> Result<u64, u8> {
        let mut info = [0; FW_INFO];
        let texts: [&[u8]; 4] = [
            b"model 1.0(1)",
            b"doorbell-vic",
            b"register model",
            b"MODEL0000000000",
        ];
        for (index, text) in texts.into_iter().enumerate() {
            info[32 * index..][..text.len()].copy_from_slice(text);
        }
        // [M] A Cruz, revision 0.
        info[128] = 3;
        let (count, said) = match size {
            0 => (FW_INFO_OLD, 0),
            size => {
                let count = usize::try_from(size).unwrap_or(FW_INFO).min(FW_INFO);
                (count, count as u64)
            }
        };
        let io = &mut self.functions[Self::memory(target, origin)].io;
        match io.write(self.context, ("devcmd", 0), at, &info[..count]) {
            true => Ok(said),
            false => Err(errno::BAD_ADDRESS),
        }
    }

    fn dump(&mut self, target: usize, origin: Origin, at: u64, size: u64) -> Result<(), u8> {
        let dump = self.functions[target].stats.dump();
        let count = usize::try_from(size).unwrap_or(usize::MAX).min(stats::LENGTH);
        let io = &mut self.functions[Self::memory(target, origin)].io;
        match io.write(self.context, ("devcmd", 0), at, &dump[..count]) {
            true => Ok(()),
            false => Err(errno::BAD_ADDRESS),
        }
    }

    fn notify(&mut self, target: usize, args: &Args) -> Result<u64, u8> {
        let function = &mut self.functions[target];
        if args[0] == 0 {
            function.notify = None;
            return Ok(0);
        }
        let size = (args[1] as u32 as usize).min(notify::LENGTH) / 4 * 4;
        let interrupt = (args[1] >> 32) as u16;
        if size < 8 || interrupt != notify::NO_INTERRUPT && usize::from(interrupt) >= function.interrupts {
            return Err(errno::INVALID);
        }
        function.notify = Some(NotifyArea {
            address: args[0],
            size,
            interrupt,
        });
        if function.notify(self.context, self.adapter, false) {
            Ok(size as u64)
        } else {
            function.notify = None;
            Err(errno::BAD_ADDRESS)
        }
    }

    /// A reset by command: queues, filters, states; maps and the connection stay.
    fn soft_reset(&mut self, target: usize) {
        let done = self.context.after(self.context.options.timing.two_part);
        self.adapter.forget(self.functions, target);
        let function = &mut self.functions[target];
        function.soft_reset();
        function.life.reset_done = done;
    }
}

/// The commands of filters and queue pairs.
fn is_steering(command: Command) -> bool {
    matches!(
        command,
        Command::AddFilter | Command::DelFilter | Command::QpEnable | Command::QpDisable
    )
}

/// The commands by which a function comes to life.
fn is_life(command: Command) -> bool {
    use Command as C;
    matches!(
        command,
        C::Open
            | C::OpenStatus
            | C::Init
            | C::InitV1
            | C::InitStatus
            | C::Enable
            | C::Disable
            | C::Deinit
            | C::Close
    )
}

/// The error for a virtual function that steers itself; 0: it may.
fn refused(context: &Context) -> u8 {
    match context.options.policy {
        Policy::Real => errno::NO_PERMISSION,
        Policy::Permissive => 0,
        Policy::Hidden => errno::UNKNOWN,
    }
}

/// A hardware address as an argument: the first octet is the lowest byte.
pub(crate) fn packed(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// The address of an argument.
pub(crate) fn mac(argument: u64) -> [u8; 6] {
    let [a, b, c, d, e, f, ..] = argument.to_le_bytes();
    [a, b, c, d, e, f]
}
