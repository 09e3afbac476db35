//! Frames by name: how a script describes one that is on its way. Written from the table at the head of
//! `wire.rs`, and from nothing of its code.

use std::fmt;

/// What a frame or an operation contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) name: &'static str,
    fields: Vec<(&'static str, u64)>,
}

/// A number in a header: its name, where it is, and its bytes.
type Field = (&'static str, usize, usize);

const SEQ: Field = ("seq", 4, 4);
const TAG: Field = ("tag", 8, 8);

/// Flags that scripts know.
const RESTARTED: u8 = 0x01;
const CAN_PUT: u8 = 0x10;
const AGAIN: u8 = 0x20;
const IMMEDIATE: u8 = 0x04;
const NO_DATA: u8 = 0x08;

/// A kind that never travels: MATCH with the flag IMMEDIATE.
const WORD: u8 = 0xff;

fn layout(kind: u8) -> (&'static str, &'static [Field]) {
    const RESTART: &[Field] = &[
        SEQ,
        TAG,
        ("sender", 16, 8),
        ("receiver", 24, 8),
        ("restart", 32, 4),
    ];
    const RNDV: &[Field] = &[
        SEQ,
        TAG,
        ("length", 16, 8),
        ("sender", 24, 8),
        ("receiver", 32, 8),
        ("restart", 40, 4),
    ];
    const FIN: &[Field] = &[
        SEQ,
        TAG,
        ("sender", 16, 8),
        ("receiver", 24, 8),
        ("restart", 36, 4),
    ];
    const PATH: &[Field] = &[("path", 2, 2), ("number", 4, 4)];
    match kind {
        1 => ("MATCH", &[SEQ, TAG]),
        WORD => ("IMMEDIATE", &[SEQ, ("data", 8, 8)]),
        2 => ("RNDV", RNDV),
        3 => ("RGET", RNDV),
        4 => (
            "ACK",
            &[
                SEQ,
                TAG,
                ("sender", 16, 8),
                ("receiver", 24, 8),
                ("offset", 32, 8),
                ("until", 40, 8),
                ("restart", 48, 4),
                ("counted", 52, 4),
            ],
        ),
        5 => ("NACK", FIN),
        6 => (
            "FRAG",
            &[("restart", 4, 4), ("receiver", 8, 8), ("offset", 16, 8)],
        ),
        8 => (
            "PUT",
            &[
                SEQ,
                TAG,
                ("sender", 16, 8),
                ("receiver", 24, 8),
                ("offset", 32, 8),
                ("restart", 40, 4),
            ],
        ),
        9 => ("FIN", FIN),
        10 => ("NOTIFY", RESTART),
        11 => ("RESTART-ACK", RESTART),
        12 => ("RESTART-NACK", RESTART),
        13 => ("ERROR", RESTART),
        14 => ("CREDIT", &[("consumed", 8, 8)]),
        15 => ("PROBE", PATH),
        16 => ("ECHO", PATH),
        17 => ("BROKEN", PATH),
        _ => ("UNKNOWN", &[]),
    }
}

impl Said {
    /// Of the bytes of a frame.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let is_word = bytes[0] == 1 && bytes[1] & IMMEDIATE != 0;
        let (name, layout) = layout(if is_word { WORD } else { bytes[0] });
        let mut fields: Vec<(&'static str, u64)> = layout
            .iter()
            .map(|&(field, at, length)| {
                let mut word = [0; 8];
                word[..length].copy_from_slice(&bytes[at..at + length]);
                (field, u64::from_le_bytes(word))
            })
            .collect();
        let flag = |flag: u8| u64::from(bytes[1] & flag != 0);
        if is_word {
            fields.push(("none", flag(NO_DATA)));
        }
        if matches!(name, "RNDV" | "RGET") {
            fields.push(("restarted", flag(RESTARTED)));
            fields.push(("can-put", flag(CAN_PUT)));
            fields.push(("again", flag(AGAIN)));
        }
        Self { name, fields }
    }

    /// Of a one-sided operation.
    pub(crate) fn operation(name: &'static str, length: u64) -> Self {
        Self {
            name,
            fields: vec![("length", length)],
        }
    }

    /// Whether this is what a script describes: a name, and numbers of some fields.
    pub(crate) fn is(&self, asked: &[&str]) -> bool {
        let Some((name, wanted)) = asked.split_first() else {
            return true;
        };
        let fits = |pair: &[&str]| {
            let known = self.fields.iter().find(|(field, _)| *field == pair[0]);
            let (_, value) = known.unwrap_or_else(|| panic!("a {} has no `{}`", self.name, pair[0]));
            let asked: u64 = pair[1].parse().expect("a number after the name of a field");
            *value == asked
        };
        assert!(wanted.len() % 2 == 0, "fields are `name number`");
        self.name == *name && wanted.chunks(2).all(fits)
    }
}

impl fmt::Display for Said {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name)?;
        for (field, value) in &self.fields {
            match *field {
                "sender" | "receiver" if *value != 0 => {
                    let (index, generation) = (value & 0xffff_ffff, value >> 32);
                    write!(out, " {field} {index}.{generation}")?;
                }
                _ => write!(out, " {field} {value}")?,
            }
        }
        Ok(())
    }
}
