{{- /* Sets what the values lack, or have as null, to its default: Helm deletes a default whose value is null, and
templates would fail. A null inside of a value (an annotation, a resource) stays a deletion. Every template begins with it: they
share the values, which are restored once, and come in no certain order. */ -}}
{{- define "collage.restore" -}}
{{- if not (hasKey .Values "restored") -}}
{{- range $path, $default := include "collage.defaults" . | fromJson -}}
{{- $keys := splitList "." $path -}}
{{- $parent := $.Values -}}
{{- range initial $keys -}}
{{- if kindIs "map" $parent -}}
{{- if kindIs "invalid" (index $parent .) -}}
{{- $_ := set $parent . (dict) -}}
{{- end -}}
{{- $parent = index $parent . -}}
{{- end -}}
{{- end -}}
{{- if kindIs "map" $parent -}}
{{- if kindIs "invalid" (index $parent (last $keys)) -}}
{{- $_ := set $parent (last $keys) $default -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set .Values "restored" true -}}
{{- end -}}
{{- end -}}

{{- /* The reference of an image; takes a list of the root and the image's name. The chart's version is the tag where
neither tag nor digest is given: a digest says all. */ -}}
{{- define "collage.image" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $shared := $root.Values.image -}}
{{- $own := index $shared $name | default dict -}}
{{- if kindIs "string" $own -}}
{{- $own -}}
{{- else -}}
{{- $repository := $own.repository -}}
{{- if not $repository -}}
{{- $folder := required "image.repository is required: where the images controller and measure are" $shared.repository -}}
{{- $repository = printf "%s/%s" ($folder | trimSuffix "/") $name -}}
{{- end -}}
{{- with $own.registry | default $shared.registry -}}
{{- $repository = printf "%s/%s" (. | trimSuffix "/") $repository -}}
{{- end -}}
{{- $tag := $own.tag | default $shared.tag -}}
{{- if not (or $tag $own.digest) -}}
{{- $tag = $root.Chart.AppVersion -}}
{{- end -}}
{{- $repository -}}
{{- with $tag }}:{{ . }}{{ end -}}
{{- with $own.digest }}@{{ . }}{{ end -}}
{{- end -}}
{{- end -}}

{{- /* The name of a ServiceAccount; takes a list of the root and its component. */ -}}
{{- define "collage.account" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $account := index $root.Values.serviceAccounts $component -}}
{{- if not (or $account.create $account.name) -}}
{{- fail (printf "serviceAccounts.%s.name is required with serviceAccounts.%s.create=false: the name of an account in %s, for this release alone" $component $component $root.Release.Namespace) -}}
{{- end -}}
{{- $account.name | default (printf "%s-%s" (include "collage.fullname" $root) $component) -}}
{{- end -}}

{{- /* The Secrets to pull images with, of pods whose account may be the user's own. */ -}}
{{- define "collage.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end -}}
{{- end -}}

{{- /* The version of Kueue's API: the newest that the cluster has, and v1beta1 where it has none or is not asked. */ -}}
{{- define "collage.kueueApi" -}}
{{- if .Capabilities.APIVersions.Has "kueue.x-k8s.io/v1beta2" -}}
kueue.x-k8s.io/v1beta2
{{- else -}}
kueue.x-k8s.io/v1beta1
{{- end -}}
{{- end -}}

{{- /* "true" where pods get the store's credentials of EKS Pod Identity: as set, or where AWS's store has neither a
Secret nor a role of IRSA. */ -}}
{{- define "collage.podIdentity" -}}
{{- $choice := .Values.networkPolicy.podIdentity -}}
{{- if kindIs "bool" $choice -}}
{{- ternary "true" "" $choice -}}
{{- else if and (hasPrefix "s3://" .Values.store.uri) (not (contains "endpoint=" .Values.store.uri)) (not .Values.store.existingSecret) -}}
{{- hasKey .Values.serviceAccounts.controller.annotations "eks.amazonaws.com/role-arn" | ternary "" "true" -}}
{{- end -}}
{{- end -}}

{{- /* Where a node's agent gives pods the credentials of EKS Pod Identity. It asks for the pod's own token. */ -}}
{{- define "collage.podIdentityPeers" -}}
- ipBlock: {cidr: 169.254.170.23/32}
- ipBlock: {cidr: "fd00:ec2::23/128"}
{{- end -}}

{{- /* The address of an alert's runbook; takes a list of the root and the alert's name. */ -}}
{{- define "collage.runbook" -}}
{{- printf "%s#%s" (index . 0).Values.metrics.runbooks (index . 1 | lower) -}}
{{- end -}}
