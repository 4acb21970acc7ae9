use super::Line;

/// The driver's programs that run the IMEX daemon.
#[derive(Clone, Debug, Default)]
pub struct ProgramFacts {
    /// Those that are needed, for people.
    pub needed: String,
    /// Where they were looked for.
    pub folder: String,
    /// Those that are not there, or cannot be executed.
    pub missing: Vec<String>,
}

pub(super) fn check(facts: &ProgramFacts) -> Line {
    match facts.missing.as_slice() {
        [] => Line::ok("imex-programs", format!("{} in {}", facts.needed, facts.folder)),
        missing => Line::fail(
            "imex-programs",
            format!("no {} in {}", missing.join(", no "), facts.folder),
            "install the nvidia-imex package of the driver's version below the driver root",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::graded;
    use super::*;

    #[test]
    fn each_outcome() {
        let facts = |missing: &[&str]| ProgramFacts {
            needed: "nvidia-imex and nvidia-imex-ctl".into(),
            folder: "/usr/bin".into(),
            missing: missing.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert_eq!(graded(&[check(&facts(&[]))]), ["Ok imex-programs"]);
        let line = check(&facts(&["nvidia-imex", "nvidia-imex-ctl"]));
        assert_eq!(graded(std::slice::from_ref(&line)), ["Fail imex-programs"]);
        assert_eq!(line.found, "no nvidia-imex, no nvidia-imex-ctl in /usr/bin");
    }
}
