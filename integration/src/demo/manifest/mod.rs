//! Manifests: read, checked as a whole, and only then applied.

mod check;
mod kind;
mod rules;
mod yaml;

use std::fmt;
use std::path::{Path, PathBuf};

pub use check::check;
pub use kind::Kind;

/// One object of a manifest, with the place of each of its fields.
#[derive(Clone, Debug)]
pub struct Document {
    /// The file it stands in.
    pub file: PathBuf,
    /// What kind it is.
    pub kind: &'static Kind,
    /// The object. A namespaced one has its namespace filled in.
    pub object: serde_json::Value,
    lines: yaml::Lines,
}

impl Document {
    /// `metadata.name`, or what it generates names from.
    pub fn name(&self) -> &str {
        let metadata = &self.object["metadata"];
        metadata["name"].as_str().or(metadata["generateName"].as_str()).unwrap_or_default()
    }

    /// `metadata.namespace`; empty for a cluster-scoped object.
    pub fn namespace(&self) -> &str {
        self.object["metadata"]["namespace"].as_str().unwrap_or_default()
    }

    /// A Namespace that no file asks for by itself.
    pub fn namespace_named(name: &str) -> Self {
        Self {
            file: PathBuf::from("(made for its objects)"),
            kind: &kind::KINDS[0],
            object: serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
            lines: yaml::Lines::default(),
        }
    }

    /// A problem with one of its fields. A path that the file lacks is placed at its nearest parent.
    fn problem(&self, field: &str, expected: impl fmt::Display) -> Problem {
        Problem {
            file: self.file.clone(),
            line: self.lines.nearest(field),
            field: field.to_owned(),
            expected: expected.to_string(),
        }
    }
}

/// Something in a file that cannot be played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1; 0 where the file could not be read at all.
    pub line: usize,
    /// Path of the field, such as `spec.channel.allocationMode`; empty for the document as a whole.
    pub field: String,
    /// What was expected there, or what is wrong with it.
    pub expected: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        write!(f, ": {}", self.expected)
    }
}

/// Reads files and checks that every object in them could be created.
///
/// # Errors
/// Every problem in every file: nothing has been applied then.
pub fn load(files: &[PathBuf]) -> Result<Vec<Document>, Vec<Problem>> {
    let mut documents = Vec::new();
    let mut problems = Vec::new();
    for file in files {
        match std::fs::read_to_string(file) {
            Ok(text) => collect(file, &text, &mut documents, &mut problems),
            Err(error) => problems.push(Problem {
                file: file.clone(),
                line: 0,
                field: String::new(),
                expected: format!("cannot be read: {error}"),
            }),
        }
    }
    problems.extend(check(&documents));
    if problems.is_empty() && documents.is_empty() {
        problems.push(Problem {
            file: files.first().cloned().unwrap_or_default(),
            line: 0,
            field: String::new(),
            expected: "holds no object; expected for instance a ComputeDomain and Pods".into(),
        });
    }
    if problems.is_empty() { Ok(documents) } else { Err(problems) }
}

/// Reads one text, as [`load`] does.
///
/// # Errors
/// As [`load`].
pub fn parse(file: &Path, text: &str) -> Result<Vec<Document>, Vec<Problem>> {
    let mut documents = Vec::new();
    let mut problems = Vec::new();
    collect(file, text, &mut documents, &mut problems);
    problems.extend(check(&documents));
    if problems.is_empty() { Ok(documents) } else { Err(problems) }
}

fn collect(file: &Path, text: &str, documents: &mut Vec<Document>, problems: &mut Vec<Problem>) {
    let parsed = match yaml::parse(text) {
        Ok(parsed) => parsed,
        Err((line, message)) => {
            let expected = format!("expected YAML: {message}");
            problems.push(Problem { file: file.to_owned(), line, field: String::new(), expected });
            return;
        }
    };
    for (object, lines) in parsed {
        match Document::recognise(file, object, lines) {
            Ok(found) => documents.extend(found),
            Err(problem) => problems.push(problem),
        }
    }
}

impl Document {
    /// Finds the kind; a `List` becomes its items.
    fn recognise(file: &Path, object: serde_json::Value, lines: yaml::Lines) -> Result<Vec<Self>, Problem> {
        let at = |line: usize, field: &str, expected: String| Problem {
            file: file.to_owned(),
            line,
            field: field.to_owned(),
            expected,
        };
        if !object.is_object() {
            return Err(at(lines.nearest(""), "", "expected an object with apiVersion and kind".into()));
        }
        let (api_version, kind) = (object["apiVersion"].as_str(), object["kind"].as_str());
        if (api_version, kind) == (Some("v1"), Some("List")) {
            let items = object["items"].as_array().cloned().unwrap_or_default();
            let found: Result<Vec<_>, _> = (items.into_iter().enumerate())
                .map(|(index, item)| Self::recognise(file, item, lines.below(&format!("items[{index}]"))))
                .collect();
            return Ok(found?.into_iter().flatten().collect());
        }
        let Some(kind) = kind.and_then(|kind| Kind::find(api_version.unwrap_or_default(), kind)) else {
            let known: Vec<_> = kind::KINDS.iter().map(|kind| format!("{} {}", kind.api_version, kind.kind)).collect();
            let field =
                if kind.is_none() || Kind::named(kind.unwrap_or_default()).is_none() { "kind" } else { "apiVersion" };
            return Err(at(lines.nearest(field), field, format!("expected one of: {}", known.join(", "))));
        };
        let mut document = Self { file: file.to_owned(), kind, object, lines };
        if kind.namespaced && document.object["metadata"].is_object() && document.namespace().is_empty() {
            document.object["metadata"]["namespace"] = "default".into();
        }
        Ok(vec![document])
    }
}
