//! A seeded network on a virtual clock, as a driver.
