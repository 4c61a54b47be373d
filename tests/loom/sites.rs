//! No place that a model could weaken is left without a model that notices it.

use gradring::shm::sync::Site;

/// The source of the list, and of everything that may use it.
const LIST: &str = include_str!("../../src/shm/site.rs");
const MODELS: [&str; 9] = [
    include_str!("barrier.rs"),
    include_str!("bell.rs"),
    include_str!("crash.rs"),
    include_str!("end.rs"),
    include_str!("join.rs"),
    include_str!("padding.rs"),
    include_str!("poison.rs"),
    include_str!("progress.rs"),
    include_str!("ring.rs"),
];

/// The names of all sites, in the order of the list.
fn sites() -> Vec<&'static str> {
    let start = LIST.find("pub enum Site {").expect("the list is there");
    let list = &LIST[start..];
    let list = &list[..list.find("\n}").expect("it ends")];
    list.lines()
        .filter_map(|line| line.trim().strip_suffix(','))
        .filter(|name| name.chars().all(char::is_alphanumeric))
        .collect()
}

/// Whether some text names the site, and not only one whose name begins like it.
fn names(text: &str, site: &str) -> bool {
    let name = format!("Site::{site}");
    text.match_indices(&name).any(|(at, _)| {
        !text[at + name.len()..].starts_with(|next: char| next.is_alphanumeric() || next == '_')
    })
}

#[test]
fn every_site_has_a_model_that_notices_it() {
    let sites = sites();
    assert_eq!(
        sites.first().map(|name| name.to_string()),
        Some(format!("{:?}", Site::TailStore)),
        "the list is read from its start"
    );
    assert_eq!(
        sites.last().map(|name| name.to_string()),
        Some(format!("{:?}", Site::PublishBlocks)),
        "and to its end"
    );
    for site in sites {
        assert!(
            MODELS.iter().any(|model| names(model, site)),
            "no model uses {site}"
        );
    }
}
