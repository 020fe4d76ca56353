{{- define "tandem.name" -}}{{ printf "%s-tandem" .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}

{{- define "tandem.image" -}}
{{- $at := .root.Values.image -}}
{{ if $at.registry }}{{ $at.registry }}/{{ end }}tandem/{{ .name }}:{{ $at.tag }}
{{- end }}

{{- define "tandem.selector" -}}
app.kubernetes.io/name: tandem
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "tandem.labels" -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "tandem.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: 0
fsGroup: {{ .group }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tandem.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "tandem.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "tandem.hasTls" -}}{{ if ne .Values.tls.mode "none" }}yes{{ end }}{{- end }}

{{- define "tandem.serviceCertificate" -}}
{{ if eq .Values.tls.mode "secrets" }}{{ required "tls.serviceSecret: name the Secret with tls.crt, tls.key and ca.crt" .Values.tls.serviceSecret }}{{ else }}{{ include "tandem.name" . }}-service-tls{{ end }}
{{- end }}

{{- define "tandem.redisCertificate" -}}
{{ if eq .Values.tls.mode "secrets" }}{{ required "tls.redisSecret: name the Secret with tls.crt, tls.key and ca.crt" .Values.tls.redisSecret }}{{ else }}{{ include "tandem.name" . }}-redis-tls{{ end }}
{{- end }}

{{- define "tandem.isMutual" -}}
{{ if .Values.tls.mutual }}{{ if include "tandem.hasTls" . }}yes{{ else }}{{ fail "tls.mutual: needs certificates: set tls.mode to certManager or secrets" }}{{ end }}{{ end }}
{{- end }}

{{- define "tandem.clientCertificate" -}}
{{ if eq .Values.tls.mode "secrets" }}{{ required "tls.clientSecret: name the Secret with tls.crt, tls.key and ca.crt" .Values.tls.clientSecret }}{{ else }}{{ include "tandem.name" . }}-client-tls{{ end }}
{{- end }}

{{/* The variables of all processes of ours. `user`: that of Redis. */}}
{{- define "tandem.environment" -}}
- {name: TANDEM_STATE, value: /var/lib/tandem}
{{- if .root.Values.store.url }}
- {name: TANDEM_STORE, value: {{ .root.Values.store.url | quote }}}
{{- else }}
- {name: TANDEM_STORE, value: /var/lib/tandem-store}
{{- end }}
{{- if .root.Values.keys.secret }}
- {name: TANDEM_KEYS, value: /run/tandem/keys}
{{- end }}
{{- if .root.Values.redis.bundled }}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ required "redis.passwordsSecret: name the Secret with the passwords of Redis" .root.Values.redis.passwordsSecret }}, key: REDIS_{{ upper .user }}_PASSWORD}}
- name: REDIS_URL
  value: {{ printf "redis%s://%s:$(REDIS_PASSWORD)@%s-redis:6379/0" (ternary "s" "" (ne .root.Values.tls.mode "none")) .user (include "tandem.name" .root) }}
{{- if include "tandem.hasTls" .root }}
- {name: TANDEM_REDIS_CA, value: /run/tandem/redis-tls/ca.crt}
{{- end }}
{{- if include "tandem.isMutual" .root }}
- {name: TANDEM_REDIS_CERT, value: /run/tandem/client-tls/tls.crt}
- {name: TANDEM_REDIS_KEY, value: /run/tandem/client-tls/tls.key}
{{- end }}
{{- else }}
- name: REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ required "redis.urlSecret: name the Secret with the URL of Redis, or set redis.bundled" .root.Values.redis.urlSecret }}, key: url}}
{{- end }}
{{- range $name, $value := merge (dict) .settings .root.Values.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "tandem.credentials" -}}
{{- with .Values.store.credentialsSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}

{{- define "tandem.mounts" -}}
- {name: state, mountPath: /var/lib/tandem}
- {name: tmp, mountPath: /tmp}
{{- if not .Values.store.url }}
- {name: store, mountPath: /var/lib/tandem-store}
{{- end }}
{{- if .Values.keys.secret }}
- {name: keys, mountPath: /run/tandem/keys, readOnly: true}
{{- end }}
{{- if and .Values.redis.bundled (include "tandem.hasTls" .) }}
- {name: redis-authority, mountPath: /run/tandem/redis-tls, readOnly: true}
{{- end }}
{{- if include "tandem.isMutual" . }}
- {name: client, mountPath: /run/tandem/client-tls, readOnly: true}
{{- end }}
{{- end }}

{{/* `keys`: the Secret of keys. */}}
{{- define "tandem.volumes" -}}
- {name: state, emptyDir: {}}
- {name: tmp, emptyDir: {}}
{{- if not .root.Values.store.url }}
- name: store
  persistentVolumeClaim: {claimName: {{ .root.Values.store.claim | default (printf "%s-store" (include "tandem.name" .root)) }}}
{{- end }}
{{- if .root.Values.keys.secret }}
- name: keys
  secret: {secretName: {{ .keys }}, defaultMode: 0440}
{{- end }}
{{- if and .root.Values.redis.bundled (include "tandem.hasTls" .root) }}
- name: redis-authority
  secret: {secretName: {{ include "tandem.redisCertificate" .root }}, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- if include "tandem.isMutual" .root }}
- name: client
  secret: {secretName: {{ include "tandem.clientCertificate" .root }}, defaultMode: 0440}
{{- end }}
{{- end }}
