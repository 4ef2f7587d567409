{{- /* Maps as one, in YAML; takes a list of maps, of which later ones win, and null removes a key. */ -}}
{{- define "collage.merged" -}}
{{- $merged := dict -}}
{{- range $map := . -}}
{{- range $key, $value := $map -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $merged $key -}}
{{- else -}}
{{- $_ := set $merged $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $merged -}}
{{- end -}}

{{- /* Labels and annotations of a pod; takes a dict: root, component, annotations (a map), ends (for a pod that ends by
itself: the annotations keep sidecars out, which would not end). Labels that select pods cannot be replaced. */ -}}
{{- define "collage.podMetadata" -}}
{{- $values := .root.Values -}}
{{- $jobs := .ends | ternary $values.jobs (dict) -}}
{{- $own := include "collage.labels" (list .root .component) | fromYaml -}}
labels:
  {{- include "collage.merged" (list $values.podLabels $jobs.podLabels $own) | nindent 2 }}
{{- $annotations := include "collage.merged" (list $values.podAnnotations $jobs.podAnnotations .annotations) }}
{{- if ne $annotations "{}" }}
annotations:
  {{- $annotations | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* What a pod may do to its node: nothing. An id that is null is the cluster's to choose. */ -}}
{{- define "collage.podSecurity" -}}
{{- $ids := .Values.podSecurityContext | default dict -}}
runAsNonRoot: true
{{- range $id := list "runAsUser" "runAsGroup" "fsGroup" }}
{{- if not (kindIs "invalid" (index $ids $id)) }}
{{ $id }}: {{ index $ids $id | int64 }}
{{- end }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "collage.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* What pods of Jobs get of the values, as JSON (collage/cluster/controller/pod_settings.py). */ -}}
{{- define "collage.jobPods" -}}
{{- include "collage.checkExtras" . -}}
{{- $values := .Values -}}
{{- $ids := $values.podSecurityContext | default dict -}}
{{- $pod := dict "env" $values.extraEnv "volumes" $values.extraVolumes "volumeMounts" $values.extraVolumeMounts "arch" $values.image.arch -}}
{{- $_ := set $pod "labels" (include "collage.merged" (list $values.podLabels $values.jobs.podLabels) | fromYaml) -}}
{{- $_ := set $pod "annotations" (include "collage.merged" (list $values.podAnnotations $values.jobs.podAnnotations) | fromYaml) -}}
{{- range $id := list "runAsUser" "runAsGroup" "fsGroup" -}}
{{- $_ := set $pod $id nil -}}
{{- if not (kindIs "invalid" (index $ids $id)) -}}
{{- $_ := set $pod $id (index $ids $id | int64) -}}
{{- end -}}
{{- end -}}
{{- if $values.caBundle.configMap -}}
{{- $_ := set $pod "caBundle" $values.caBundle -}}
{{- end -}}
{{- toJson $pod -}}
{{- end -}}

{{- /* Refuses what would bring a Secret to the pods of Jobs, which run what models bring, unless it is named for them. */ -}}
{{- define "collage.checkExtras" -}}
{{- $allowed := .Values.admissionPolicy.extraSecrets -}}
{{- $advice := "name it in admissionPolicy.extraSecrets if they may have it" -}}
{{- range $variable := .Values.extraEnv -}}
{{- $reference := ($variable.valueFrom | default dict).secretKeyRef | default dict -}}
{{- if and $reference (not (has $reference.name $allowed)) -}}
{{- fail (printf "extraEnv: %s comes from the Secret %s, and the pods that run what models bring get it too: %s, or use worker.extraEnv and receiver.extraEnv" $variable.name $reference.name $advice) -}}
{{- end -}}
{{- $value := $variable.value | default "" -}}
{{- $secret := and (regexMatch "(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY|AUTH)(_|$)|_KEY$" $variable.name) $value (not (hasPrefix "/" $value)) -}}
{{- if or $secret (regexMatch "://[^/@]+@" $value) -}}
{{- fail (printf "extraEnv: the value of %s looks like a secret, and would be in the manifest of every pod: make a Secret, take it from there (valueFrom.secretKeyRef), and %s" $variable.name $advice) -}}
{{- end -}}
{{- end -}}
{{- range $volume := .Values.extraVolumes -}}
{{- with $volume.secret -}}
{{- if not (has .secretName $allowed) -}}
{{- fail (printf "extraVolumes: %s is the Secret %s, and the pods that run what models bring get it too: %s" $volume.name .secretName $advice) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Names of the ConfigMaps and claims that the values add to pods of Jobs, as JSON. "" is none: it keeps the lists from
being empty, which CEL would give no type. */ -}}
{{- define "collage.extraSources" -}}
{{- $maps := list .Values.caBundle.configMap -}}
{{- $claims := list -}}
{{- range .Values.extraEnv -}}
{{- with (.valueFrom | default dict).configMapKeyRef -}}
{{- $maps = append $maps .name -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraVolumes -}}
{{- with .configMap -}}
{{- $maps = append $maps .name -}}
{{- end -}}
{{- with .persistentVolumeClaim -}}
{{- $claims = append $claims .claimName -}}
{{- end -}}
{{- end -}}
{{- dict "configMaps" (append $maps "" | uniq) "claims" (append $claims "" | uniq) | toJson -}}
{{- end -}}

{{- /* Variables in YAML, the last of each name: the one that counts, and the only one that a server-side apply takes. */ -}}
{{- define "collage.variables" -}}
{{- $last := dict -}}
{{- range $place, $variable := . -}}
{{- $_ := set $last $variable.name $place -}}
{{- end -}}
{{- $kept := list -}}
{{- range $place, $variable := . -}}
{{- if eq (index $last $variable.name) $place -}}
{{- $kept = append $kept $variable -}}
{{- end -}}
{{- end -}}
{{- toYaml $kept -}}
{{- end -}}

{{- /* By these OpenSSL, requests, boto3 and libcurl find the authorities that they trust. */ -}}
{{- define "collage.caVariables" -}}
{{- if .Values.caBundle.configMap -}}
{{- range list "SSL_CERT_FILE" "REQUESTS_CA_BUNDLE" "AWS_CA_BUNDLE" "CURL_CA_BUNDLE" }}
- {name: {{ . }}, value: /etc/collage-ca/ca.crt}
{{- end }}
{{- else -}}
[]
{{- end -}}
{{- end -}}

{{- define "collage.mounts" -}}
- {name: scratch, mountPath: /tmp}
- {name: environments, mountPath: /etc/collage, readOnly: true}
{{- if .Values.caBundle.configMap }}
- {name: ca-bundle, mountPath: /etc/collage-ca, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Takes a list of the root and the size of the scratch folder. */ -}}
{{- define "collage.volumes" -}}
{{- $root := index . 0 -}}
- name: scratch
  emptyDir: {sizeLimit: {{ index . 1 }}}
- name: environments
  configMap: {name: {{ include "collage.fullname" $root }}-environments}
{{- with $root.Values.caBundle }}
{{- if .configMap }}
- name: ca-bundle
  configMap: {name: {{ .configMap }}, items: [{key: {{ .key | quote }}, path: ca.crt}]}
{{- end }}
{{- end }}
{{- with $root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* A container; takes a dict: root, name, command, resources, extraEnv, extraMounts, environment (the template
of its variables), image (controller by default; the measuring image is told of nothing but the store). */ -}}
{{- define "collage.container" -}}
{{- $image := .image | default "controller" -}}
name: {{ .name }}
image: {{ include "collage.image" (list .root $image) | quote }}
{{- with .root.Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
command: {{ .command | toJson }}
{{- $environment := .environment | default (eq $image "controller" | ternary "collage.environment" "collage.telemetryOff") }}
{{- $own := include $environment .root | fromYamlArray }}
{{- $authorities := include "collage.caVariables" .root | fromYamlArray }}
env:
  {{- include "collage.variables" (concat $own $authorities (.root.Values.extraEnv | default list) (.extraEnv | default list)) | nindent 2 }}
{{- with include "collage.environmentFrom" . | trim }}
envFrom:
  {{- . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "collage.containerSecurity" .root | nindent 2 }}
volumeMounts:
  {{- include "collage.mounts" .root | nindent 2 }}
  {{- with .extraMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources:
  {{- toYaml .resources | nindent 2 }}
{{- end -}}

{{- /* Placement of a pod; takes a dict: root, values (nodeSelector, tolerations, affinity). The images run on one
architecture, unless a selector says otherwise. */ -}}
{{- define "collage.placement" -}}
{{- $arch := dict -}}
{{- with .root.Values.image.arch -}}
{{- $_ := set $arch "kubernetes.io/arch" . -}}
{{- end -}}
{{- $selector := include "collage.merged" (list $arch .values.nodeSelector) -}}
{{- if ne $selector "{}" }}
nodeSelector:
  {{- $selector | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Placement of hooks and tests: their own values, else the worker's. Its affinity to nodes is theirs, to pods is not. */ -}}
{{- define "collage.hookPlacement" -}}
{{- $setup := .Values.setup -}}
{{- $worker := .Values.worker -}}
{{- $placement := dict "nodeSelector" $worker.nodeSelector "tolerations" $worker.tolerations "affinity" (pick ($worker.affinity | default dict) "nodeAffinity") -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" -}}
{{- if not (kindIs "invalid" (index $setup $key)) -}}
{{- $_ := set $placement $key (index $setup $key) -}}
{{- end -}}
{{- end -}}
{{- include "collage.placement" (dict "root" . "values" $placement) -}}
{{- end -}}
