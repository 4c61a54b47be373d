//! The launcher with real processes: plain programs by shell scripts, replicas that join by this test's own program.
#![cfg(feature = "cli")]

#[path = "launch/agreed.rs"]
mod agreed;
#[path = "launch/command_line.rs"]
mod command_line;
#[path = "launch/failures.rs"]
mod failures;
#[path = "launch/joined.rs"]
mod joined;
#[path = "launch/leftovers.rs"]
mod leftovers;
#[path = "launch/library.rs"]
mod library;
#[path = "launch/output.rs"]
mod output;
#[path = "launch/resizing.rs"]
mod resizing;
#[path = "launch/restarts.rs"]
mod restarts;
#[path = "launch/resumed.rs"]
mod resumed;
#[path = "launch/stopping.rs"]
mod stopping;
#[path = "launch/tool.rs"]
mod tool;

/// Not a test: what this program does when a test has started it as a replica.
#[test]
fn replica() {
    joined::replica();
}
