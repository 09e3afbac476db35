//! A program that forgot to install the counting allocator is told, instead of passing every test.
#![forbid(unsafe_code)]

#[test]
#[should_panic(expected = "is not this program's `#[global_allocator]`")]
fn a_program_without_the_allocator_is_told() {
    doorbell_testing::alloc::of_thread();
}
