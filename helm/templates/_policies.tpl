{{- /* Given (list . $name $spec): a policy for the agents, and its binding. $spec has rules, variables and validations. The
token's node claim is required: a token that is bound to no node may write nothing that is a node's. */}}
{{- define "heddle.policy" -}}
{{- $root := index . 0 }}
{{- $name := index . 1 }}
{{- $spec := index . 2 | fromYaml }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels:
    {{- include "heddle.labels" (list $root "policy") | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      {{- toYaml $spec.rules | nindent 4 }}
  matchConditions:
  - name: agents
    expression: request.userInfo.username == "system:serviceaccount:{{ include "heddle.namespace" $root }}:{{ include "heddle.agent.serviceAccount" $root }}"
  variables:
  - name: claims
    expression: >-
      has(request.userInfo.extra) && "authentication.kubernetes.io/node-name" in request.userInfo.extra
      ? request.userInfo.extra["authentication.kubernetes.io/node-name"] : []
  - name: node
    expression: 'size(variables.claims) == 1 ? string(variables.claims[0]) : ""'
  {{- with $spec.variables }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  validations:
  - expression: variables.node != ""
    message: the agent's token is bound to no node; use the one that the kubelet projects into its pod
  {{- toYaml $spec.validations | nindent 2 }}
{{ include "heddle.policy.binding" (list $root $name) }}
{{- end }}
{{- /* Given (list . $name): what puts a policy in force. */}}
{{- define "heddle.policy.binding" -}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ index . 1 }}
  labels:
    {{- include "heddle.labels" (list (index . 0) "policy") | nindent 4 }}
spec:
  policyName: {{ index . 1 }}
  validationActions: [Deny]
{{- end }}
