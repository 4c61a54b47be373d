//! Reading the environment.

use super::error::Error;
use std::time::Duration;

/// The number that a variable holds; `None` if it is not set.
pub(super) fn number<T: std::str::FromStr>(
    variable: &'static str,
    expected: &str,
) -> Result<Option<T>, Error> {
    let Some(text) = std::env::var_os(variable) else {
        return Ok(None);
    };
    let parsed = text.to_str().and_then(|text| text.parse().ok());
    match parsed {
        Some(number) => Ok(Some(number)),
        None => Err(Error::Environment {
            variable,
            expected: expected.into(),
            found: format!("{text:?}"),
        }),
    }
}

/// The time that a variable holds, in seconds; `None` if it is not set.
pub(super) fn seconds(variable: &'static str) -> Result<Option<Duration>, Error> {
    let expected = "a number of seconds above 0";
    let Some(seconds) = number::<f64>(variable, expected)? else {
        return Ok(None);
    };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
        // More than any clock can count is a time that never comes.
        Err(_) if seconds > 0.0 && seconds.is_finite() => Ok(Some(Duration::MAX)),
        _ => Err(Error::Environment {
            variable,
            expected: expected.into(),
            found: format!("{seconds:?}"),
        }),
    }
}
