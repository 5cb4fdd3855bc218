{{- define "gpujob.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- $full | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of an object. Call: include "gpujob.labels" (dict "root" $ "component" "operator") */}}
{{- define "gpujob.labels" -}}
{{ include "gpujob.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: gpujob
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/*
Labels with those of the user, who wins but for what selectors look at; a key is there once.
Call: include "gpujob.labelsWith" (dict "root" $ "component" "operator" "labels" .Values...)
*/}}
{{- define "gpujob.labelsWith" -}}
{{- $selector := include "gpujob.selector" . | fromYaml -}}
{{- merge (dict) $selector .labels (include "gpujob.labels" . | fromYaml) | toYaml -}}
{{- end -}}

{{- define "gpujob.selector" -}}
app.kubernetes.io/name: gpujob
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "gpujob.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* Name of a service account. Call with (dict "root" $ "component" "operator") */}}
{{- define "gpujob.serviceAccountName" -}}
{{- $account := get .root.Values.serviceAccount .component -}}
{{- $created := printf "%s-%s" (include "gpujob.fullname" .root) .component -}}
{{- default (ternary $created "default" $account.create) $account.name -}}
{{- end -}}

{{- define "gpujob.reportURL" -}}
{{- $said := default .Values.reports.url .Values.configuration.reportUrl -}}
{{- default (printf "http://%s-reports.%s.svc:%d/report" (include "gpujob.fullname" .) .Release.Namespace (int .Values.reports.port)) $said -}}
{{- end -}}

{{/* Where agents send readings; empty: nowhere. Without an operator in the release there is no default. */}}
{{- define "gpujob.readingsURL" -}}
{{- if .Values.agent.readings.direct -}}
{{- $own := printf "http://%s-reports.%s.svc:%d/readings" (include "gpujob.fullname" .) .Release.Namespace (int .Values.reports.port) -}}
{{- default (ternary $own "" .Values.operator.enabled) .Values.agent.readings.url -}}
{{- end -}}
{{- end -}}

{{/* Whose readings the operator takes; empty: nobody's. */}}
{{- define "gpujob.agentAccount" -}}
{{- $own := printf "%s:%s" .Release.Namespace (include "gpujob.serviceAccountName" (dict "root" . "component" "agent")) -}}
{{- default (ternary $own "" (and .Values.agent.enabled .Values.agent.readings.direct)) .Values.operator.agentAccount -}}
{{- end -}}

{{/* The runtime class of agents, and of workers unless said otherwise: CPU cards need none. */}}
{{- define "gpujob.runtimeClassName" -}}
{{- if eq .Values.agent.devices "nvml" -}}{{ .Values.agent.runtimeClassName }}{{- end -}}
{{- end -}}

{{/* What Pod Security "restricted" asks of a container, and a read-only root on top. */}}
{{- define "gpujob.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "gpujob.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/*
What the operator and the agent call: the API server and DNS, which may be a pod, or the node's own
cache. The API server's address is known to no chart.
*/}}
{{- define "gpujob.egress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
- ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.networkPolicy.apiServerCIDRs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  {{- end }}
{{- end -}}
