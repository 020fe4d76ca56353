{{/* A Deployment of the online service. `component`, `serves` (TANDEM_LANES; its probes ask for each of these lanes), `of` (its values). */}}
{{- define "tandem.replica" -}}
{{- $tls := include "tandem.hasTls" .root -}}
{{- $mutual := include "tandem.isMutual" .root -}}
{{- /* A probe by a program costs more than one by the cluster. */}}
{{- $period := ternary 5 2 (ne $mutual "") -}}
{{- $lanes := ternary "" (printf "?lane=%s" (replace "," "&lane=" .serves)) (eq .serves "none") -}}
{{- $ready := printf "/v2/health/ready%s" $lanes -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "tandem.name" .root }}-{{ .component }}
  labels: {{- include "tandem.labels" . | nindent 4 }}
spec:
  {{- if not .scaled }}
  replicas: {{ .of.replicas }}
  {{- end }}
  # One more before one less: no lane is without a replica.
  strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  selector:
    matchLabels: {{- include "tandem.selector" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "tandem.labels" . | nindent 8 }}
    spec:
      {{- include "tandem.pullSecrets" .root | nindent 6 }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ .root.Values.drain.grace }}
      securityContext: {{- include "tandem.podSecurity" (dict "user" 50000 "group" 50000) | nindent 8 }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{- include "tandem.selector" . | nindent 14 }}
      {{- with .of.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .of.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: service
          image: {{ include "tandem.image" (dict "root" .root "name" "realtime-service") }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          securityContext: {{- include "tandem.confined" . | nindent 12 }}
          {{- include "tandem.credentials" .root | nindent 10 }}
          env:
            {{- include "tandem.environment" (dict "root" .root "user" "service" "settings" .of.settings) | nindent 12 }}
            - {name: TANDEM_LANES, value: {{ .serves | quote }}}
            - {name: TANDEM_GRPC_ADDRESS, value: "0.0.0.0:50051"}
            - {name: TANDEM_METRICS_ADDRESS, value: "0.0.0.0:9464"}
            - {name: TANDEM_HTTP_ADDRESS, value: "0.0.0.0:8080"}
            # Other replicas call this one by its pod's address.
            - {name: TANDEM_ADVERTISED_HOST, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
            # One a pod: pods are scaled.
            - {name: TANDEM_WORKERS, value: "1"}
            {{- if .root.Values.airflow.enabled }}
            - {name: TANDEM_NIGHTLY_EXPECTED, value: "true"}
            {{- end }}
            {{- with .root.Values.board.frames }}
            - {name: TANDEM_BOARD_FRAMES, value: {{ . | quote }}}
            {{- end }}
            {{- if $tls }}
            - {name: TANDEM_TLS_CERT, value: /run/tandem/tls/tls.crt}
            - {name: TANDEM_TLS_KEY, value: /run/tandem/tls/tls.key}
            - {name: TANDEM_TLS_CA, value: /run/tandem/tls/ca.crt}
            {{- if $mutual }}
            - {name: TANDEM_TLS_CLIENT_CA, value: /run/tandem/tls/ca.crt}
            {{- end }}
            # No certificate can name the addresses of pods.
            - {name: TANDEM_TLS_NAME, value: {{ include "tandem.name" .root }}-replicas}
            {{- else }}
            - {name: TANDEM_INSECURE, value: "yes"}
            {{- end }}
            {{- with .root.Values.auth }}
            {{- if .tokenKeysSecret }}
            - {name: TANDEM_AUTH, value: required}
            - {name: TANDEM_TOKEN_KEYS, value: /run/tandem/tokens/jwks.json}
            - {name: TANDEM_TOKEN_AUDIENCE, value: {{ required "auth.audience: name the audience of tokens" .audience | quote }}}
            - {name: TANDEM_TOKEN_ISSUER, value: {{ .issuer | quote }}}
            {{- end }}
            {{- end }}
          ports:
            - {name: grpc, containerPort: 50051}
            - {name: http, containerPort: 8080}
            - {name: metrics, containerPort: 9464}
          # It opens and warms its models first.
          startupProbe:
            {{- include "tandem.probe" (dict "root" .root "path" $ready) | nindent 12 }}
            periodSeconds: {{ $period }}
            failureThreshold: 150
          readinessProbe:
            {{- include "tandem.probe" (dict "root" .root "path" $ready) | nindent 12 }}
            periodSeconds: {{ $period }}
            failureThreshold: 2
          livenessProbe:
            {{- include "tandem.probe" (dict "root" .root "path" "/v2/health/live") | nindent 12 }}
            periodSeconds: 10
            failureThreshold: 3
          # SIGTERM, which comes after it, drains.
          lifecycle: {preStop: {exec: {command: ["sleep", {{ .root.Values.drain.preStop | quote }}]}}}
          resources: {{- toYaml .of.resources | nindent 12 }}
          volumeMounts:
            {{- include "tandem.mounts" .root | nindent 12 }}
            {{- if $tls }}
            - {name: tls, mountPath: /run/tandem/tls, readOnly: true}
            {{- end }}
            {{- if .root.Values.auth.tokenKeysSecret }}
            - {name: tokens, mountPath: /run/tandem/tokens, readOnly: true}
            {{- end }}
      volumes:
        {{- include "tandem.volumes" (dict "root" .root "keys" .root.Values.keys.secret) | nindent 8 }}
        {{- if $tls }}
        - name: tls
          secret: {secretName: {{ include "tandem.serviceCertificate" .root }}, defaultMode: 0440}
        {{- end }}
        {{- if .root.Values.auth.tokenKeysSecret }}
        - name: tokens
          secret: {secretName: {{ .root.Values.auth.tokenKeysSecret }}}
        {{- end }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "tandem.name" .root }}-{{ .component }}
  labels: {{- include "tandem.labels" . | nindent 4 }}
spec:
  # By default one at a time, also of a single one: `minAvailable` would keep its node from being drained, and so would
  # an empty bound, which a lane that an operator adds may have.
  maxUnavailable: {{ dig "maxUnavailable" 1 .of }}
  selector:
    matchLabels: {{- include "tandem.selector" . | nindent 6 }}
{{- end }}

{{/* Asks for `path`. The cluster shows no certificate, so that a program in the pod asks where one is needed; the pod's own
listener may have any name. */}}
{{- define "tandem.probe" -}}
{{- if include "tandem.isMutual" .root }}
exec:
  command:
    - python
    - -c
    - >-
      import ssl, sys, urllib.request;
      tls = ssl.create_default_context(cafile="/run/tandem/tls/ca.crt");
      tls.check_hostname = False;
      tls.load_cert_chain("/run/tandem/tls/tls.crt", "/run/tandem/tls/tls.key");
      urllib.request.urlopen("https://127.0.0.1:8080" + sys.argv[1], context=tls, timeout=4)
    - {{ .path | quote }}
{{- else }}
httpGet: {path: {{ .path | quote }}, port: http, scheme: {{ ternary "HTTPS" "HTTP" (ne (include "tandem.hasTls" .root) "") }}}
{{- end }}
timeoutSeconds: 5
{{- end }}
