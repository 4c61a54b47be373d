//! No place that a model could weaken is left without a model that notices it.

use gradring::shm::sync::Site;
use std::path::Path;

/// The source of the list.
const LIST: &str = include_str!("../../src/shm/site.rs");

/// The sources of all models.
fn models() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/loom");
    std::fs::read_dir(folder)
        .expect("the models' folder")
        .map(|entry| entry.expect("its entries").path())
        .filter(|path| !path.ends_with("sites.rs"))
        .map(|path| std::fs::read_to_string(path).expect("a model"))
        .collect()
}

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
        Some(format!("{:?}", Site::EntriesLoad)),
        "and to its end"
    );
    let models = models();
    for site in sites {
        assert!(
            models.iter().any(|model| names(model, site)),
            "no model uses {site}"
        );
    }
}
