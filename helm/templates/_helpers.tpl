{{- define "heddle.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimAll "-." }}
{{- end }}

{{- define "heddle.fullname" -}}
{{- $name := include "heddle.name" . }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- default $full .Values.fullnameOverride | trunc 50 | trimAll "-." }}
{{- end }}

{{- define "heddle.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- /* Given (list . "agent"): what selects the pods of a component. */}}
{{- define "heddle.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "heddle.name" $root | quote }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "heddle.labels" -}}
{{- $root := index . 0 -}}
{{ include "heddle.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "heddle.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else }}{{ .Values.image.repository }}:{{ $tag }}{{ end }}
{{- end }}

{{- define "heddle.agent.serviceAccount" -}}
{{- default (ternary (printf "%s-agent" (include "heddle.fullname" .)) "default" .Values.kubeletPlugin.serviceAccount.create) .Values.kubeletPlugin.serviceAccount.name }}
{{- end }}

{{- define "heddle.controller.serviceAccount" -}}
{{- default (ternary (printf "%s-controller" (include "heddle.fullname" .)) "default" .Values.controller.serviceAccount.create) .Values.controller.serviceAccount.name }}
{{- end }}

{{- /* Given a path on the host: the one below which a container finds it. /var/run is a link, which leads into the container. */}}
{{- define "heddle.path" -}}
{{- if or (eq . "/var/run") (hasPrefix "/var/run/" .) }}{{ trimPrefix "/var" . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- define "heddle.driverRoot" -}}
{{- clean (printf "/host/%s" (include "heddle.path" .Values.nvidiaDriverRoot)) }}
{{- end }}

{{- /* Given (list $theirs $ours): one map as YAML, in which theirs come first. A key that is there twice is no YAML. */}}
{{- define "heddle.merged" -}}
{{- toYaml (merge (deepCopy (default dict (index . 0))) (index . 1)) }}
{{- end }}

{{- /* Given (list $entries $own): the entries of a container's environment, of which those with a name in $own give way. */}}
{{- define "heddle.env" -}}
{{- $names := list }}
{{- range index . 1 }}{{ $names = append $names .name }}{{ end }}
{{- range index . 0 }}
{{- if not (has .name $names) }}
{{ list . | toYaml }}
{{- end }}
{{- end }}
{{- with index . 1 }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* What agent, controller and runner have alike. */}}
{{- define "heddle.env.common" -}}
- {name: HEDDLE_LOG_FORMAT, value: {{ .Values.logFormat | quote }}}
- {name: RUST_LOG, value: {{ printf "%s,kube_client=off" .Values.logLevel | quote }}}
{{- end }}

{{- define "heddle.env.peers" -}}
- {name: HEDDLE_PEER_AUTHENTICATION, value: {{ .Values.peerAuthentication.mode | quote }}}
- {name: HEDDLE_PEER_CERTIFICATE_HOURS, value: {{ .Values.peerAuthentication.certificateHours | quote }}}
{{- end }}

{{- /* Given (list $privileged $capabilities): of containers that run as root, which the comment beside its use explains. */}}
{{- define "heddle.rootSecurityContext" -}}
runAsUser: 0
readOnlyRootFilesystem: true
{{- if index . 0 }}
privileged: true
{{- else }}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  {{- with index . 1 }}
  add: {{ toJson . }}
  {{- end }}
seccompProfile: {type: RuntimeDefault}
{{- if has "SYS_ADMIN" (index . 1) }}
# The profiles of container runtimes forbid every mount.
appArmorProfile: {type: Unconfined}
seLinuxOptions: {type: spc_t}
{{- end }}
{{- end }}
{{- end }}

{{- /* Of containers that run as nobody and touch no file. */}}
{{- define "heddle.securityContext" -}}
runAsUser: 65532
runAsGroup: 65532
runAsNonRoot: true
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "heddle.container" -}}
image: {{ include "heddle.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
# Beside /dev, which may be the host's.
terminationMessagePath: /termination-log
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}
