//! Why a command failed: the device's error numbers, and the meaning of no reply.

use std::fmt;

use doorbell_vfio::Error;

/// Numbers of errors that commands end with (DPDK `enic/base/vnic_devcmd.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub u32);

impl Errno {
    /// An argument is wrong; of a filter that is taken away: it is not there.
    pub const INVALID: Self = Self(1);
    /// The command is not permitted to this function.
    pub const PERMISSION: Self = Self(3);
    /// The firmware is busy.
    pub const BUSY: Self = Self(4);
    /// The firmware does not know the command.
    pub const UNKNOWN: Self = Self(5);
    /// The function is in the wrong state: it was not opened, or was reset since.
    pub const STATE: Self = Self(6);
    /// The table of filters is full.
    pub const RESOURCES: Self = Self(10);
    /// The command is still under way.
    pub const IN_PROGRESS: Self = Self(12);

    /// Returns what it means, and what to do.
    #[must_use]
    pub fn words(self) -> (&'static str, &'static str) {
        match self.0 {
            1 => (
                "an argument is wrong",
                "the firmware sees the command otherwise than the public drivers do: report it with the firmware's version",
            ),
            2 => (
                "it cannot reach an address that it was given",
                "`dmesg | grep -e DMAR -e AMD-Vi` shows what the IOMMU stopped",
            ),
            3 => (
                "the function may not do that",
                "let an agent that has the physical function do it: `doorbell agent usnic --pf BDF`, and usnic.control=agent",
            ),
            4 => (
                "the firmware is busy",
                "try again; reset the function where it stays so",
            ),
            5 => (
                "the firmware does not know the command",
                "update the adapter's firmware, or turn the step off (usnic.vf_commands, usnic.control)",
            ),
            6 => (
                "the function is in the wrong state for it",
                "reset the function; see that its usNIC policy is on (CIMC or UCSM)",
            ),
            7 => (
                "the firmware has no memory left",
                "use fewer functions, or reset the adapter",
            ),
            8 => (
                "the firmware timed out waiting for something",
                "reset the adapter",
            ),
            9 => (
                "the link is down",
                "see the cable and the switch's port; `ip link` shows the physical function",
            ),
            10 => (
                "the table of filters, or another one, is full",
                "end other programs that use this adapter's functions, or give it more in its policy (CIMC or UCSM)",
            ),
            11 => (
                "the firmware does not support it",
                "update the adapter's firmware, and see that the feature is on in its policy (CIMC or UCSM)",
            ),
            12 => (
                "it is still under way",
                "try again; reset the function where it stays so",
            ),
            _ => (
                "no public driver defines this number",
                "report the number with the firmware's version",
            ),
        }
    }
}

/// What went wrong with a command.
#[derive(Debug)]
pub enum Fault {
    /// The device reads as ones.
    Gone,
    /// An earlier command does not end.
    Busy,
    /// The command did not end.
    TimedOut(&'static str),
    /// The device refused it.
    Refused(&'static str, Errno),
    /// The answer to this command is impossible.
    Nonsense(&'static str),
    /// The registers cannot be reached.
    Device(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Device(error)
    }
}

impl Fault {
    /// Returns what to do.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Self::Gone => "plug it in again, or name another rail".to_owned(),
            Self::Busy | Self::TimedOut(_) => {
                "reset the function, as root: `echo 1 > /sys/bus/pci/devices/BDF/reset`; if that does not help, the adapter's firmware hangs: power-cycle the host"
                    .to_owned()
            }
            Self::Refused(_, errno) => errno.words().1.to_owned(),
            Self::Nonsense(_) => "update the adapter's firmware".to_owned(),
            Self::Device(error) => error.fix(),
        }
    }

    /// The number that the device gave.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused(_, errno) => Some(*errno),
            _ => None,
        }
    }

    /// Whether the device is not there any more, or the connection to the process that models it is of no
    /// use.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Gone => true,
            Self::Device(error) => {
                matches!(
                    error,
                    Error::Gone { .. } | Error::Silent { .. } | Error::Hostile { .. }
                )
            }
            _ => false,
        }
    }

    /// Whether the function refuses this as unsupported: errors 3 and 5. What a VF accepts is unknown `[U]`,
    /// so these two are what a step that is only tried may end with.
    #[must_use]
    pub fn is_no(&self) -> bool {
        matches!(self.errno(), Some(Errno::PERMISSION | Errno::UNKNOWN))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => out.write_str("the device reads as ones: it was unplugged, or is powered down"),
            Self::Busy => out.write_str("the device is busy with an earlier command and does not end it"),
            Self::TimedOut(command) => write!(out, "the device did not end the command {command} in time"),
            Self::Refused(command, errno) => {
                write!(
                    out,
                    "the device refused {command}: {} (error {})",
                    errno.words().0,
                    errno.0
                )
            }
            Self::Nonsense(command) => write!(out, "the device's answer to {command} cannot be"),
            Self::Device(error) => out.write_str(&error.reason()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_sentence_and_a_fix() {
        let mut seen = std::collections::HashSet::new();
        for number in 1..=12 {
            let fault = Fault::Refused("QP_ENABLE", Errno(number));
            let said = fault.to_string();
            assert!(
                said.contains("QP_ENABLE") && said.contains(&format!("error {number}")),
                "{said}"
            );
            assert!(
                !fault.fix().is_empty() && seen.insert(Errno(number).words().0),
                "{number}"
            );
        }
        assert!(Errno(99).words().0.contains("no public driver"));
        assert!(Fault::Refused("", Errno::PERMISSION).is_no() && Fault::Refused("", Errno::UNKNOWN).is_no());
        assert!(!Fault::Refused("", Errno(6)).is_no() && !Fault::Busy.is_no());
        let gone = Error::Gone {
            device: String::new(),
            step: "",
            source: None,
        };
        assert!(Fault::Gone.is_gone() && Fault::Device(gone).is_gone() && !Fault::Busy.is_gone());
    }
}
