//! The provider's getinfo and its objects without a data path, through the installed libfabric.

mod alone;
mod border;
mod clients;
mod counted;
mod directed;
mod domains;
mod events;
mod everything;
mod foreign;
mod getinfo;
mod loading;
mod opened;
mod rail_sets;
mod registrations;
mod tables;
mod vectors;
mod waits;
