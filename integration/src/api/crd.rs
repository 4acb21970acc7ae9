//! CustomResourceDefinitions: what they make the server serve, and what is checked of them.

use serde_json::{Value, json};

use super::resource::{GroupResource, Resource};
use super::schema::Schema;
use super::status::FieldError;
use super::store::Store;

/// What a CRD says about the objects of one version.
#[derive(Debug)]
pub struct Custom {
    /// The version in which objects are stored.
    pub storage_version: String,
    /// Their schema.
    pub schema: Schema,
    /// What tables show of them.
    pub columns: Vec<Column>,
}

/// One of `additionalPrinterColumns`.
#[derive(Clone, Debug)]
pub struct Column {
    /// Heading.
    pub name: String,
    /// `string`, `integer`, `date`, …
    pub type_name: String,
    /// Where the value is.
    pub path: String,
    /// Columns above 0 are for wide tables.
    pub priority: i64,
}

/// Reads a CRD into the kinds it defines, one a version.
///
/// # Errors
/// What is wrong with it, field by field.
pub fn resources(crd: &Value) -> Result<Vec<Resource>, Vec<FieldError>> {
    let spec = &crd["spec"];
    let names = &spec["names"];
    let mut errors = Vec::new();
    for (path, value) in [
        ("spec.group", &spec["group"]),
        ("spec.scope", &spec["scope"]),
        ("spec.names.plural", &names["plural"]),
        ("spec.names.kind", &names["kind"]),
    ] {
        if value.as_str().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(path));
        }
    }
    let id =
        GroupResource::new(spec["group"].as_str().unwrap_or_default(), names["plural"].as_str().unwrap_or_default());
    if crd["metadata"]["name"] != id.to_string() {
        let wanted = format!("must be spec.names.plural+\".\"+spec.group, that is {id}");
        errors.push(FieldError::invalid("metadata.name", &crd["metadata"]["name"], wanted));
    }
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let stored = versions.iter().filter(|version| version["storage"] == true).collect::<Vec<_>>();
    if stored.len() != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid("spec.versions", stored.len(), detail));
    }
    let storage_version = stored.first().and_then(|version| version["name"].as_str()).unwrap_or_default();
    let mut resources = Vec::new();
    for (at, version) in versions.iter().enumerate().filter(|(_, version)| version["served"] == true) {
        let path = format!("spec.versions[{at}].schema.openAPIV3Schema");
        let schema = match Schema::compile(&version["schema"]["openAPIV3Schema"], &path) {
            Ok(schema) => schema,
            Err(found) => {
                errors.extend(found);
                continue;
            }
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts = |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
        let fields = version["selectableFields"].as_array().into_iter().flatten();
        let kind = text(&names["kind"]);
        resources.push(Resource {
            storage: id.clone(),
            id: id.clone(),
            version: text(&version["name"]),
            singular: names["singular"].as_str().map_or_else(|| kind.to_lowercase(), str::to_owned),
            kind,
            short_names: texts(&names["shortNames"]),
            categories: texts(&names["categories"]),
            namespaced: spec["scope"] == "Namespaced",
            has_status: version["subresources"].get("status").is_some(),
            selectable: fields.map(|f| text(&f["jsonPath"]).trim_start_matches('.').to_owned()).collect(),
            custom: Some(Custom {
                storage_version: storage_version.to_owned(),
                schema,
                columns: columns(&version["additionalPrinterColumns"]),
            }),
        });
    }
    if errors.is_empty() { Ok(resources) } else { Err(errors) }
}

fn columns(list: &Value) -> Vec<Column> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let column = |value: &Value| Column {
        name: text(&value["name"]),
        type_name: text(&value["type"]),
        path: text(&value["jsonPath"]),
        priority: value["priority"].as_i64().unwrap_or_default(),
    };
    list.as_array().into_iter().flatten().map(column).collect()
}

/// Checks a CRD and writes into its status that it is served.
pub fn check(crd: &mut Value, now: &str) -> Vec<FieldError> {
    if let Err(errors) = resources(crd) {
        return errors;
    }
    let names = crd["spec"]["names"].clone();
    let stored = crd["spec"]["versions"].as_array().into_iter().flatten();
    let stored = stored.filter(|version| version["storage"] == true).map(|version| version["name"].clone());
    let stored = stored.collect::<Vec<_>>();
    let since = crd["status"]["conditions"][0]["lastTransitionTime"].as_str().unwrap_or(now).to_owned();
    let condition = |kind: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since,
        })
    };
    crd["status"] = json!({
        "acceptedNames": names,
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "storedVersions": stored,
    });
    Vec::new()
}

/// Checks an object against the CRD of its kind as the server would on creation, or on a replacement of `old`:
/// defaults are filled in, then the schema and its rules are applied. Unknown fields are errors, as they are for
/// `kubectl apply`.
///
/// # Errors
/// What is wrong with the CRD itself.
pub fn validate(crd: &Value, object: &Value, old: Option<&Value>) -> Result<Vec<FieldError>, Vec<FieldError>> {
    let resources = resources(crd)?;
    let Some(resource) = resources.iter().find(|resource| object["apiVersion"] == resource.api_version()) else {
        let served = resources.iter().map(|r| format!("\"{}\"", r.api_version())).collect::<Vec<_>>();
        return Ok(vec![FieldError::unsupported("apiVersion", &object["apiVersion"], &served)]);
    };
    let Some(custom) = &resource.custom else { return Ok(Vec::new()) };
    let mut object = object.clone();
    let unknown = custom.schema.prune(&mut object).into_iter();
    let mut errors = unknown.map(FieldError::unknown).collect::<Vec<_>>();
    custom.schema.apply_defaults(&mut object);
    errors.extend(custom.schema.check(&object, old));
    Ok(errors)
}

impl Store {
    /// Serves what a CRD that was checked defines. What is there already is pruned and defaulted by it when it is read, as
    /// the real server does.
    pub(super) fn serve(&mut self, crd: &Value) {
        let Ok(resources) = resources(crd) else { return };
        let Some(first) = resources.first() else { return };
        let (id, version) = (first.id.clone(), first.version.clone());
        let stored_as = first.custom.as_ref().map_or(version.clone(), |custom| custom.storage_version.clone());
        let served = resources.iter().any(|resource| resource.version == stored_as);
        let read_as = if served { stored_as } else { version };
        self.catalog.remove(&id);
        for resource in resources {
            self.catalog.add(resource);
        }
        if self.learn_schemas(&id, &crd["spec"]["versions"])
            && let Some(resource) = self.catalog.find(&id.group, &read_as, &id.plural)
            && let Some(custom) = &resource.custom
        {
            self.reshape(&id, |object| {
                custom.schema.prune(object);
                custom.schema.apply_defaults(object);
            });
        }
    }
}
