{{- define "collage.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimAll "-." -}}
{{- end -}}

{{- define "collage.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimAll "-." -}}
{{- else if contains (include "collage.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimAll "-." -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "collage.name" .) | trunc 40 | trimAll "-." -}}
{{- end -}}
{{- end -}}

{{- /* The name of the receiver's Service: one label of a domain name that begins with a letter, unlike a release's name. */ -}}
{{- define "collage.receiverService" -}}
{{- $name := include "collage.fullname" . | replace "." "-" -}}
{{- ternary "release-" "" (regexMatch "^[0-9]" $name) }}{{ $name }}-receiver
{{- end -}}

{{- /* The measuring environments. The default is here: Helm would merge one of values.yaml into the user's. */ -}}
{{- define "collage.environments" -}}
{{- $environments := dict -}}
{{- range $name, $environment := .Values.measuring.environments -}}
{{- if not (kindIs "invalid" $environment) -}}
{{- $_ := set $environments $name $environment -}}
{{- end -}}
{{- end -}}
{{- toYaml ($environments | default (dict "cpu" (dict "threads" 1 "cpu" 2 "memory" "4Gi"))) -}}
{{- end -}}

{{- /* Takes a list of the root and a component. */ -}}
{{- define "collage.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "collage.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "collage.labels" -}}
{{- $root := index . 0 -}}
{{ include "collage.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: collage
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "collage.store" -}}
{{- required "store.uri is required: s3://bucket/prefix, with ?endpoint=... where it is not AWS" .Values.store.uri -}}
{{- end -}}

{{- /* The store's address for pods that measure: they may not write where conditional writes are tried. */ -}}
{{- define "collage.measureStore" -}}
{{- $uri := include "collage.store" . -}}
{{- if and (hasPrefix "s3://" $uri) (not (contains "probe=" $uri)) -}}
{{- $uri }}{{ ternary "&" "?" (contains "?" $uri) }}probe=off
{{- else -}}
{{- $uri -}}
{{- end -}}
{{- end -}}

{{- /* The Secret with the private key; nothing where signing is off. */ -}}
{{- define "collage.signingSecret" -}}
{{- if .Values.signing.enabled -}}
{{- $how := list "signing.existingSecret is required: bundles are signed. Make a key and its Secret,"
      "  openssl genpkey -algorithm ed25519 -out key.pem"
      "  openssl pkey -in key.pem -pubout -out key.pub"
      (printf "  kubectl create secret generic collage-signing --namespace %s --from-file=%s=key.pem" .Release.Namespace .Values.signing.secretKey)
      "and add --set signing.existingSecret=collage-signing; give key.pub to whoever serves the bundles (docs/security.md)."
      "Without signatures, where anyone who can write to the store decides what servers run: --set signing.enabled=false" -}}
{{- required (join "\n" $how) .Values.signing.existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "collage.prefectUrl" -}}
{{- required "prefect.apiUrl is required, e.g. http://prefect-server:4200/api" .Values.prefect.apiUrl -}}
{{- end -}}

{{- /* Name of this installation among those of one Prefect server; empty for plain names. */ -}}
{{- define "collage.prefectRelease" -}}
{{- $release := .Values.prefect.release | default (printf "%s.%s" .Release.Namespace .Release.Name) -}}
{{- ternary "" $release (eq $release "-") -}}
{{- end -}}

{{- /* Secrets of the pods that ask, build and measure, as JSON: never the controller's, unless that is asked for. */ -}}
{{- define "collage.measureSecrets" -}}
{{- $store := .Values.store -}}
{{- if and $store.existingSecret (not $store.measuring.existingSecret) (not $store.measuring.shareSecret) -}}
{{- fail (printf "store.measuring.existingSecret is required with store.existingSecret: a Secret with credentials that may write what measuring pods write and no more, for those pods run what models bring. Make a user of the store with the policy in helm/collage/policies/measure.json, and: kubectl create secret generic collage-store-measure --namespace %s --from-literal=AWS_ACCESS_KEY_ID=... --from-literal=AWS_SECRET_ACCESS_KEY=... Or set store.measuring.shareSecret=true: then a model can change bundles and aliases" .Release.Namespace) -}}
{{- end -}}
{{- list ($store.measuring.existingSecret | default $store.existingSecret) $store.recordKey.existingSecret | compact | toJson -}}
{{- end -}}

{{- /* Secrets of the pods that finish, as JSON. */ -}}
{{- define "collage.finishSecrets" -}}
{{- list (.Values.store.finishing.existingSecret | default .Values.store.existingSecret) .Values.store.recordKey.existingSecret | compact | toJson -}}
{{- end -}}

{{- /* Peers that are everywhere but what a cloud's node tells its own pods (credentials): metadata and other link-local. */ -}}
{{- define "collage.anywhere" -}}
- namespaceSelector: {}
- ipBlock: {cidr: 0.0.0.0/0, except: [169.254.0.0/16]}
- ipBlock: {cidr: "::/0", except: ["fe80::/10", "fd00:ec2::/32"]}
{{- end -}}

{{- /* Where the store is: as given; a bucket of AWS is outside of the cluster and of private networks. */ -}}
{{- define "collage.storePeers" -}}
{{- if .Values.networkPolicy.storeTo -}}
{{- toYaml .Values.networkPolicy.storeTo -}}
{{- else if or (contains "endpoint=" .Values.store.uri) (not (hasPrefix "s3://" .Values.store.uri)) -}}
{{- include "collage.anywhere" . -}}
{{- else -}}
- ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10, 169.254.0.0/16]}
- ipBlock: {cidr: "2000::/3"}
{{- end -}}
{{- end -}}

{{- /* Of every container: no library reports home (collage/telemetry.py). */ -}}
{{- define "collage.telemetryOff" -}}
- {name: ORT_DISABLE_TELEMETRY, value: "1"}
- {name: MLFLOW_DISABLE_TELEMETRY, value: "true"}
- {name: PREFECT_SERVER_ANALYTICS_ENABLED, value: "false"}
- {name: DO_NOT_TRACK, value: "true"}
{{- end -}}

{{- /* The settings that all programs of the controller image share. */ -}}
{{- define "collage.environment" -}}
- {name: COLLAGE_STORE, value: {{ include "collage.store" . | quote }}}
- {name: COLLAGE_NOTIFY_BLOCK, value: {{ .Values.prefect.notifyBlock | quote }}}
- {name: COLLAGE_REGISTRY, value: {{ .Values.registry.uri | quote }}}
- {name: COLLAGE_ALIAS, value: {{ .Values.registry.alias | quote }}}
- {name: COLLAGE_ACCEPTED, value: {{ .Values.registry.accepted | quote }}}
- {name: COLLAGE_SLOTS, value: {{ .Values.measuring.slots | quote }}}
- {name: COLLAGE_RUNS, value: {{ .Values.measuring.runs | quote }}}
{{- if .Values.teams }}
- {name: COLLAGE_TEAMS_FILE, value: /etc/collage/teams.yaml}
{{- end }}
{{- range $name, $seconds := .Values.limits }}
{{- if not (kindIs "invalid" $seconds) }}
- {name: COLLAGE_LIMITS__{{ $name | snakecase | upper }}, value: {{ $seconds | quote }}}
{{- end }}
{{- end }}
- {name: COLLAGE_WORK_POOL, value: {{ .Values.prefect.workPool | quote }}}
- {name: COLLAGE_RELEASE, value: {{ include "collage.prefectRelease" . | quote }}}
- {name: COLLAGE_RECONCILE_CRON, value: {{ .Values.schedules.reconcile | quote }}}
- {name: COLLAGE_ENVIRONMENT_CRON, value: {{ .Values.schedules.environment | quote }}}
- {name: COLLAGE_GARBAGE_CRON, value: {{ .Values.schedules.garbage | quote }}}
- {name: COLLAGE_ENVIRONMENTS_FILE, value: /etc/collage/environments.yaml}
- {name: COLLAGE_CLUSTER__NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
- {name: COLLAGE_CLUSTER__MEASURE_IMAGE, value: {{ include "collage.image" (list . "measure") | quote }}}
- {name: COLLAGE_CLUSTER__CONTROLLER_IMAGE, value: {{ include "collage.image" (list . "controller") | quote }}}
- {name: COLLAGE_CLUSTER__SERVICE_ACCOUNT, value: {{ include "collage.account" (list . "measure") }}}
- {name: COLLAGE_CLUSTER__ENV_FROM_SECRETS, value: {{ include "collage.measureSecrets" . | quote }}}
- {name: COLLAGE_CLUSTER__FINISH_SERVICE_ACCOUNT, value: {{ include "collage.account" (list . "finish") }}}
- {name: COLLAGE_CLUSTER__FINISH_ENV_FROM_SECRETS, value: {{ include "collage.finishSecrets" . | quote }}}
- {name: COLLAGE_CLUSTER__IMAGE_PULL_POLICY, value: {{ .Values.image.pullPolicy | quote }}}
{{- with include "collage.signingSecret" . }}
- {name: COLLAGE_CLUSTER__SIGNING, value: {{ dict "name" . "key" $.Values.signing.secretKey | toJson | quote }}}
{{- end }}
- {name: COLLAGE_CLUSTER__POD, value: {{ include "collage.jobPods" . | replace "$(" "$$(" | quote }}}
- {name: PREFECT_API_URL, value: {{ include "collage.prefectUrl" . | quote }}}
{{ include "collage.telemetryOff" . }}
{{- with .Values.registry.trackingUri }}
- {name: MLFLOW_TRACKING_URI, value: {{ . | quote }}}
{{- end }}
{{- end -}}

{{- /* The receiver knows the registry and Prefect, and refuses variables that it does not know. */ -}}
{{- define "collage.receiverEnvironment" -}}
- {name: COLLAGE_RECEIVER__JOURNAL, value: /var/lib/collage/receiver.db}
- {name: COLLAGE_RECEIVER__DEVICE, value: {{ .Values.receiver.device | quote }}}
- {name: COLLAGE_RELEASE, value: {{ include "collage.prefectRelease" . | quote }}}
- {name: COLLAGE_REGISTRY, value: {{ .Values.registry.uri | quote }}}
- {name: COLLAGE_ALIAS, value: {{ .Values.registry.alias | quote }}}
- {name: PREFECT_API_URL, value: {{ include "collage.prefectUrl" . | quote }}}
{{ include "collage.telemetryOff" . }}
{{- end -}}

{{- /* The exporter knows Prefect alone, and refuses variables that it does not know. */ -}}
{{- define "collage.metricsEnvironment" -}}
- {name: COLLAGE_RELEASE, value: {{ include "collage.prefectRelease" . | quote }}}
- {name: COLLAGE_ENVIRONMENTS_FILE, value: /etc/collage/environments.yaml}
- {name: PREFECT_API_URL, value: {{ include "collage.prefectUrl" . | quote }}}
{{ include "collage.telemetryOff" . }}
{{- end -}}

{{- /* Secrets that a container is told: the receiver, which strangers may call, and the exporter know Prefect's alone. */ -}}
{{- define "collage.environmentFrom" -}}
{{- $values := .root.Values -}}
{{- $names := list $values.store.existingSecret $values.store.recordKey.existingSecret -}}
{{- if has .name (list "receiver" "metrics") -}}
{{- $names = list $values.prefect.existingSecret -}}
{{- else if eq (.image | default "controller") "measure" -}}
{{- $names = include "collage.measureSecrets" .root | fromJsonArray -}}
{{- else -}}
{{- $names = concat $names (list $values.prefect.existingSecret $values.registry.existingSecret) -}}
{{- end -}}
{{- range $names | compact | uniq }}
- secretRef: {name: {{ . }}}
{{- end }}
{{- end -}}

{{- /* The TCP port of an address; takes the address. */ -}}
{{- define "collage.port" -}}
{{- $url := urlParse . -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
{{- if $port }}{{ $port }}{{ else if eq $url.scheme "http" }}80{{ else }}443{{ end -}}
{{- end -}}

{{- define "collage.storePort" -}}
{{- $endpoint := regexFind "[?&]endpoint=[^&]*" (include "collage.store" .) | replace "%3A" ":" | replace "%2F" "/" -}}
{{- include "collage.port" (regexReplaceAll "^[?&]endpoint=" $endpoint "") -}}
{{- end -}}
