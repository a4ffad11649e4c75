//! A process that uses locks, told what to do by its arguments.
fn main() {}
