{{/* What the pods of helm test have in common. */}}
{{- define "gpujob.testPod" -}}
restartPolicy: Never
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- include "gpujob.podSecurity" . | nindent 2 }}
nodeSelector: {{- merge (dict) .Values.operator.nodeSelector (dict "kubernetes.io/os" "linux") | toYaml | nindent 2 }}
{{- with .Values.operator.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "gpujob.testContainer" -}}
image: {{ include "gpujob.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- include "gpujob.containerSecurity" . | nindent 2 }}
resources:
  requests: {cpu: 10m, memory: 32Mi}
  limits: {memory: 128Mi}
{{- end -}}

{{/*
The job of helm test: the operator's own image, which every node of the operator can have, and no
training. It asks for little memory, so that it fits beside others.
*/}}
{{- define "gpujob.testJob" -}}
apiVersion: gpujob.dev/v1alpha1
kind: GPUJob
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "gpujob.labels" (dict "root" .root "component" "test") | nindent 4 }}
spec:
  gpu: {memory: 64Mi}
  optimize: {mode: "Off"}
  retry: {limit: 1}
  template:
    spec:
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      terminationGracePeriodSeconds: 5
      {{- with .root.Values.tests.job.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: worker
          image: {{ include "gpujob.image" .root | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command: [python, -c, "print('a GPUJob runs')"]
          resources:
            requests: {cpu: 10m, memory: 64Mi}
            limits: {memory: 128Mi}
{{- end -}}
