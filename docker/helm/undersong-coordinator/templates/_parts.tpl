{{- define "undersong.labels" -}}
app.kubernetes.io/name: undersong-coordinator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "undersong.container" -}}
image: {{ if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- with .Values.environmentSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end }}
