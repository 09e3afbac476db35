//! The types and constants of libfabric's headers, one file for what belongs together.
//!
//! Names, fields and numbers are those of C, so that the man pages describe them; each file names its header
//! and pages. Enumerations are plain numbers here: what the other side writes may be any.

pub mod atomic;
pub mod av;
pub mod cm;
pub mod cntr;
pub mod collective;
pub mod cq;
pub mod domain;
pub mod endpoint;
pub mod eq;
pub mod errno;
pub mod fabric;
pub mod flags;
pub mod info;
pub mod mr;
pub mod msg;
pub mod nic;
pub mod provider;
pub mod rma;
pub mod tagged;
pub mod trigger;
pub mod usnic;
pub mod wait;
pub mod xpu;

use crate::layout::{Constant, Structure};

/// The structures of all files.
pub(crate) const STRUCTURES: &[&[Structure]] = &[
    atomic::STRUCTURES,
    av::STRUCTURES,
    cm::STRUCTURES,
    cntr::STRUCTURES,
    collective::STRUCTURES,
    cq::STRUCTURES,
    domain::STRUCTURES,
    endpoint::STRUCTURES,
    eq::STRUCTURES,
    fabric::STRUCTURES,
    info::STRUCTURES,
    mr::STRUCTURES,
    msg::STRUCTURES,
    nic::STRUCTURES,
    provider::STRUCTURES,
    rma::STRUCTURES,
    tagged::STRUCTURES,
    trigger::STRUCTURES,
    usnic::STRUCTURES,
    wait::STRUCTURES,
    xpu::STRUCTURES,
];

/// The tables of functions of all files.
pub(crate) const TABLES: &[&[Structure]] = &[
    atomic::TABLES,
    av::TABLES,
    cm::TABLES,
    cntr::TABLES,
    collective::TABLES,
    cq::TABLES,
    domain::TABLES,
    endpoint::TABLES,
    eq::TABLES,
    fabric::TABLES,
    mr::TABLES,
    msg::TABLES,
    rma::TABLES,
    tagged::TABLES,
    usnic::TABLES,
    wait::TABLES,
    xpu::TABLES,
];

/// The constants of all files.
pub(crate) const CONSTANTS: &[&[Constant]] = &[
    atomic::CONSTANTS,
    av::CONSTANTS,
    cntr::CONSTANTS,
    collective::CONSTANTS,
    cq::CONSTANTS,
    domain::CONSTANTS,
    endpoint::CONSTANTS,
    eq::CONSTANTS,
    errno::CONSTANTS,
    fabric::CONSTANTS,
    flags::CONSTANTS,
    info::CONSTANTS,
    mr::CONSTANTS,
    nic::CONSTANTS,
    provider::CONSTANTS,
    tagged::CONSTANTS,
    trigger::CONSTANTS,
    usnic::CONSTANTS,
    wait::CONSTANTS,
    xpu::CONSTANTS,
];
