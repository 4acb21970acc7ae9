use std::error::Error;

/// An error with what is at the bottom of it: libraries say "transport error" or "client error (Connect)", and what
/// helps a person is under that.
pub(crate) fn told(error: &dyn Error) -> String {
    let (text, cause) = (error.to_string(), innermost(error));
    if text.contains(&cause) { text } else { format!("{text}: {cause}") }
}

/// What is at the bottom of an error.
pub(crate) fn innermost(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Layer(&'static str, #[source] Option<Box<Layer>>);

    #[test]
    fn the_cause_is_told_once() {
        let refused = || Some(Box::new(Layer("connection refused", None)));
        let cases = [
            (Layer("client error", Some(Box::new(Layer("connect", refused())))), "client error: connection refused"),
            (Layer("client error: connection refused", refused()), "client error: connection refused"),
            (Layer("alone", None), "alone"),
        ];
        for (error, told_as) in cases {
            assert_eq!(told(&error), told_as);
        }
    }
}
